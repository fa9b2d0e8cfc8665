"""What a measured run puts into the baseline."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.gate.baseline import ModelFacts, Operator, Outside, Sketch, Times
from sme2_assets.gate.sketches import sketch_of
from sme2_assets.models.artifact import load_exported, read_manifest
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse

# A trace numbers operators of one kind; the number is a position, which the gate ignores.
_OPERATORS = """
    SELECT
        coalesce(module, '') AS module, coalesce(source, '') AS source, coalesce(code, '') AS code, category,
        coalesce(input_shape || ' to ' || output_shape, '') AS shape,
        regexp_replace(name, ' #\\d+$', '') AS kernel, backend, on_sme_unit AS unit, macs,
        instructions, macs_executed, macs_on_unit, outer_products, streaming_entries, packing_instructions
    FROM operator_facts WHERE run_id = ? AND on_sme_unit IS NOT NULL
    ORDER BY delegate NULLS LAST, position
"""
# The same in every session, because the gate measures in one thread: several spin while they wait.
_INSTRUCTIONS = """
    SELECT sum(instructions)::BIGINT AS instructions FROM operator_work
    WHERE run_id = ? AND kind NOT IN ('between inferences', 'unattributed')
"""
_OUTSIDE = """
    SELECT operator, coalesce(module, '') AS module, coalesce(min(reason), '') AS reason,
        sum(count)::BIGINT AS count
    FROM delegation WHERE run_id = ? AND NOT delegated GROUP BY operator, module ORDER BY ALL
"""
# With the same keys as in _OPERATORS.
_BECAUSE = """
    SELECT coalesce(module, '') AS module, coalesce(source, '') AS source, min(because) AS because
    FROM missed_sme2 WHERE run_id = ? AND on_sme_unit = 'off' GROUP BY ALL
"""


class Taken(NamedTuple):
    """The facts. And, not part of a baseline: why operators are off the unit, by module and line, the code
    that rewrites of the graph stand for, and what the program was made from."""

    facts: ModelFacts
    because: dict[tuple[str, str], str]
    rewritten: tuple[str, ...] = ()
    made_from: tuple[tuple[str, str], ...] = ()

    def is_made_like(self, base: Taken) -> bool:
        """Whether both are of one version of a model; a change may add code, such as that of a rewrite."""
        return set(base.made_from) <= set(self.made_from)


@lru_cache(maxsize=64)
def taken_of(store: Store, run_id: str) -> Taken:
    """From a run with SME2 on, without times. Remembered, as a run never changes."""
    warehouse = Warehouse(store.warehouse)
    folder = RunFolder.verified(store.run_dir(run_id))
    identity, info = folder.manifest.identity, folder.manifest.info
    exported = load_exported(
        store.artifacts / "models" / identity.variant / (store.current("model", identity.variant) or "")
    )
    if exported.pte_sha256 != identity.pte_sha256:
        raise Sme2Error(
            f"{identity.variant} was exported again while it was being measured.",
            "Leave the model alone until the gate has finished, and run it again.",
        )
    manifest = read_manifest(exported.manifest)
    outputs = next(folder.processes("latency")).folder / "outputs"
    [counted] = _records(warehouse, _INSTRUCTIONS, run_id)
    facts = ModelFacts(
        instructions=counted["instructions"],
        program_bytes=exported.pte.stat().st_size,
        delegate_calls=manifest.operators.delegates,
        steps=len(_records(warehouse, "SELECT 1 FROM operator_facts WHERE run_id = ?", run_id)),
        sqnr_db=[round(each["sqnr_db"], 2) for each in info.agreements] or None,
        least_db=info.sqnr_threshold_db,
        inputs=_sketches(exported.inputs),
        outputs=_sketches(sorted(outputs.glob("output_*.npy"), key=lambda path: int(path.stem[7:]))),
        operators=[Operator(**row) for row in _records(warehouse, _OPERATORS, run_id)],
        outside=[Outside(**row) for row in _records(warehouse, _OUTSIDE, run_id)],
    )
    reasons = _records(warehouse, _BECAUSE, run_id)
    because = {(each["module"], each["source"]): each["because"] for each in reasons}
    # A change has other options, and is called by them.
    made_from = [*manifest.versions.items(), *manifest.identity.items()]
    made_from = sorted((name, it) for name, it in made_from if name != "options")
    return Taken(facts, because, tuple(manifest.options.get("rewritten", ())), tuple(made_from))


def times_of(warehouse: Warehouse, run_id: str, asked: str) -> Times:
    """The rounds of a native run."""
    [run] = _records(warehouse, "SELECT * FROM runs WHERE run_id = ?", run_id)
    rounds = _records(
        warehouse, "SELECT median_ns FROM latency_rounds WHERE run_id = ? ORDER BY round", run_id
    )
    names = ("platform", "device", "fidelity", "sme2", "threads", "cpus")
    medians = [each["median_ns"] for each in rounds]
    return Times(**{name: run[name] for name in names}, asked=asked, rounds_ns=medians)


def _sketches(paths: list[Path]) -> list[Sketch]:
    return [sketch_of(np.load(path, allow_pickle=False)) for path in paths]


def _records(warehouse: Warehouse, sql: str, run_id: str) -> list[dict[str, Any]]:
    rows = warehouse.query(sql, [run_id])
    records = rows.astype(object).where(rows.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in records]
