"""Where the documentation of each asset is, and what it takes to make it.

The pages are files in this repository, which the webserver of `sme2 dev` also shows. If a team serves them
elsewhere, `build_definitions(docs_url=...)` links there.
"""

from dataclasses import dataclass

import dagster as dg

from sme2_assets.store import GUIDE_PAGE, anchor_of
from sme2_assets.warehouse import schema
from sme2_assets.warehouse.schema import Table

# Where Dagster looks for the columns of a table.
COLUMN_SCHEMA = "dagster/column_schema"
# Whom to ask about an asset, in Dagster's form for a team.
OWNER = "team:sme2_assets"


@dataclass(frozen=True)
class Guide:
    """A page of docs/, its section, and what to know about an asset before starting it."""

    page: str
    section: str
    # `minutes` or `seconds`, on a toy model.
    takes: str
    # What it occupies: `device` (nothing else may run there), `cpu`, or `warehouse`.
    occupies: str
    # The table of the warehouse that it writes; of several, the one it is named after.
    table: Table | None = None

    def link(self, base: str) -> str:
        address = f"{base.rstrip('/')}/{self.page}#{anchor_of(self.section)}"
        return f"[{self.page}]({address}), “{self.section}”"


GUIDES = {
    "runner_binary": Guide("docs/runner.md", "The runner", "minutes", "cpu"),
    "source_runner": Guide("docs/source_builds.md", "Runners from source", "minutes", "cpu"),
    "exported_model": Guide("docs/models.md", "Models", "minutes", "cpu"),
    "etdump_traces": Guide("docs/measuring.md", "How we measure", "minutes", "device"),
    "aa_noise": Guide("docs/measuring.md", "How we measure", "minutes", "device", schema.COMPARISONS),
    "arms_comparison": Guide("docs/compare.md", "Compare anything", "minutes", "device", schema.COMPARISONS),
    "timeline": Guide(
        "docs/warehouse.md", "What to know before reading a number", "seconds", "warehouse", schema.TIMELINE
    ),
    "kernel_evidence": Guide("docs/kernels.md", "Which kernel really ran", "seconds", "warehouse"),
    "category_summary": Guide(
        "docs/warehouse.md", "What to know before reading a number", "seconds", "warehouse"
    ),
    "sme2_comparison": Guide(
        "docs/measuring.md", "How we measure", "seconds", "warehouse", schema.COMPARISONS
    ),
    "advice": Guide("docs/advise.md", "Advice that was tried first", "seconds", "warehouse", schema.ADVICE),
    "report": Guide("docs/reports.md", "What a page says", "seconds", "warehouse"),
    "overview": Guide("docs/reports.md", "The overview", "seconds", "warehouse"),
    "regressions": Guide("docs/nightly.md", "What it leaves", "seconds", "warehouse", schema.REGRESSIONS),
    "night_summary": Guide("docs/nightly.md", "What it leaves", "seconds", "warehouse"),
}


def guided(spec: dg.AssetSpec, docs_url: str) -> dg.AssetSpec:
    """The asset with its owner, its table's columns, and where to read more.

    And tags to select by, e.g. `tag:takes=seconds`.
    """
    guide = GUIDES.get(spec.key.to_user_string())
    if guide is None:
        return spec
    new_here = f"[The UI in five clicks]({docs_url.rstrip('/')}/{GUIDE_PAGE})"
    read_on = f"Read on: {guide.link(docs_url)}. New here? {new_here}."
    return spec.replace_attributes(
        description=f"{spec.description}\n\n{read_on}",
        owners=[OWNER],
        tags={**spec.tags, "takes": guide.takes, "occupies": guide.occupies},
        metadata={**spec.metadata, **({COLUMN_SCHEMA: _columns_of(guide.table)} if guide.table else {})},
    )


def _columns_of(table: Table) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[dg.TableColumn(column.name, column.type, column.comment) for column in table.all_columns]
    )
