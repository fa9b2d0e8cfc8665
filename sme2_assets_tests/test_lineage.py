"""The graph is true: an asset depends on what it reads, and reads nothing that it does not depend on.

Every asset behind the measurement is materialised on made-up runs, and watched: which facts it takes from
other assets, which pointers of the data folder it follows, which tables its queries touch. Each of these is
made by an asset, and that asset must be upstream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest

from sme2_assets.definitions import build_definitions
from sme2_assets.defs.nights import Nights
from sme2_assets.defs.resources import Lab
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun

VARIANT = "toy_cnn-fp32"
RUN_KEYS = {sme2: f"{VARIANT}|linux-sme2_{sme2}" for sme2 in ("off", "on")}
PAIR_KEY = f"{VARIANT}|linux"
# What the assets write; rounds and samples of operators are counted from events when a run is published.
TABLES_OF = {
    "timeline": (
        *("runs", "inferences", "timeline", "operators", "delegation", "numerics", "environment"),
        *("operator_rounds", "operator_order", "programs", "part_rounds"),
    ),
    "category_summary": ("category_rounds", "category_times"),
    "kernel_evidence": ("kernel_samples", "registered_kernels", "operator_samples", "function_samples"),
    "sme2_comparison": ("comparisons",),
    "aa_noise": ("comparisons",),
    "regressions": ("regressions",),
    "advice": ("advice",),
}
TABLES = {table for tables in TABLES_OF.values() for table in tables}
ROWS = ["timeline", "kernel_evidence", "category_summary"]
WATCHED = ("timeline", "sme2_comparison", "report", "overview", "regressions")


@dataclass
class Watch:
    """What was read while an asset was made."""

    facts: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)

    @property
    def makers(self) -> set[str]:
        return self.facts | {name for name, tables in TABLES_OF.items() if self.tables & set(tables)}


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        made.add_dynamic_partitions("model_variants", [VARIANT])
        yield made


@pytest.fixture(scope="module")
def reads(
    tmp_path_factory: pytest.TempPathFactory, instance: dg.DagsterInstance
) -> Iterator[dict[str, Watch]]:
    """What each asset read."""
    with pytest.MonkeyPatch.context() as patch:
        yield _watched(tmp_path_factory.mktemp("lineage"), instance, patch)


def _watched(folder: Path, instance: dg.DagsterInstance, patch: pytest.MonkeyPatch) -> dict[str, Watch]:
    store = Store(folder / "data")
    lab = Lab(data_root=str(store.root))
    for sme2, key in RUN_KEYS.items():
        made = MadeRun(sme2=sme2, rounds=1, iterations=1)
        made.write(store.runs)
        instance.report_runless_asset_event(
            dg.AssetMaterialization("etdump_traces", partition=key, metadata={"run_id": made.run_id})
        )
    watch = Watch()
    fetch = dg.DagsterInstance.fetch_materializations
    query = Warehouse.query

    def watched_fetch(self, records_filter, *rest, **named):  # type: ignore[no-untyped-def]
        watch.facts.add(records_filter.asset_key.to_user_string())
        return fetch(self, records_filter, *rest, **named)

    def watched_query(self, sql, *rest, **named):  # type: ignore[no-untyped-def]
        watch.tables.update(_tables_of(self, sql))
        return query(self, sql, *rest, **named)

    patch.setattr(dg.DagsterInstance, "fetch_materializations", watched_fetch)
    patch.setattr(Warehouse, "query", watched_query)
    found = {}
    assets = list(build_definitions(lab).assets or [])
    for name in WATCHED:
        keys = {"timeline": RUN_KEYS}.get(name) or (
            {} if name in ("overview", "regressions") else {"pair": PAIR_KEY}
        )
        watch = Watch()
        for key in list(keys.values()) or [None]:
            done = dg.materialize(
                assets,  # type: ignore[arg-type]
                # One step makes all rows of a session.
                selection=ROWS if name == "timeline" else [name],
                partition_key=key,
                instance=instance,
                resources={"lab": lab, "nights": Nights()},
            )
            assert done.success
        found[name] = watch
    return found


def test_every_asset_depends_on_what_it_reads(reads: dict[str, Watch]):
    upstream = _upstream()
    for name, watch in reads.items():
        missing = watch.makers - set(ROWS if name in ROWS else [name]) - upstream[name]
        assert not missing, f"{name} reads what {', '.join(sorted(missing))} made, and does not depend on it"


def test_every_direct_edge_behind_the_measurement_is_one_that_is_read(reads: dict[str, Watch]):
    for name, watch in reads.items():
        # The overview links to the pages of reports, which are files.
        files = {"report"} if name == "overview" else set()
        unread = _direct()[name] - watch.makers - files
        assert not unread, f"{name} depends on {', '.join(sorted(unread))}, and reads nothing of it"


def test_a_measurement_depends_on_the_runner_and_the_model():
    for name in ("etdump_traces", "aa_noise"):
        assert _direct()[name] == {"runner_binary", "exported_model"}


def _direct() -> dict[str, set[str]]:
    graph = build_definitions().resolve_asset_graph()
    return {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }


def _upstream() -> dict[str, set[str]]:
    direct = _direct()

    def above(name: str) -> set[str]:
        return direct[name] | {each for parent in direct[name] for each in above(parent)}

    return {name: above(name) for name in direct}


def _tables_of(warehouse: Warehouse, sql: str) -> set[str]:
    """The tables behind a query, through all views."""
    with warehouse.connect() as connection:
        views = dict(
            connection.execute(
                "SELECT view_name, sql FROM duckdb_views() WHERE database_name = 'warehouse' AND NOT internal"
            ).fetchall()
        )
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [sql]
    while waiting:
        for name in re.findall(r"\b(?:FROM|JOIN)\s+(?:\w+\.)*(\w+)", waiting.pop(), re.IGNORECASE):
            if name in TABLES:
                found.add(name)
            elif name in views and name not in seen:
                seen.add(name)
                waiting.append(views[name])
    return found
