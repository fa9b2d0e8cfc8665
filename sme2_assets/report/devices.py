"""One model on several devices, side by side: where outputs, kernels or success differ.

Belongs here: what differs between devices that have no times to compare. Does not: the arms of one session
(arms), what each device gave on its own (terminal, files).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from sme2_assets.analysis.pairing import operator_pairs, place_of
from sme2_assets.report.arms import on_unit_cells, outputs_cell
from sme2_assets.report.tables import Record, TextTable, unit_cell
from sme2_assets.report.unit_use import unit_counts
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import rows_of_view, run_of_id


def devices_table(warehouse: Warehouse, run_ids: Mapping[str, str | None]) -> TextTable:
    """A row for each device with its run; a device without one failed."""
    runs = {device: run_of_id(warehouse, run_id) for device, run_id in run_ids.items() if run_id}
    counts = unit_counts(warehouse, [run["run_id"] for run in runs.values()])
    alike = pd.Series({device: run["output_sha256"] for device, run in runs.items()})
    rows = []
    for device in run_ids:
        if device not in runs:
            rows.append([device, "FAILED", None, None, None])
            continue
        run = runs[device]
        same = [other for other in alike.index[alike == run["output_sha256"]] if other != device]
        rows.append(
            [device, outputs_cell(run), ", ".join(same) or None, *on_unit_cells(counts.get(run["run_id"]))]
        )
    header = ["device", "outputs", "bit for bit as", "on the SME unit", "multiply-accumulates on it"]
    return TextTable.of(header, rows)


def operators_that_differ(warehouse: Warehouse, run_ids: Mapping[str, str | None]) -> TextTable:
    """Where a device uses another kernel, or another unit, for an operator than the last device does."""
    facts = {
        device: rows_of_view(warehouse, "operator_facts", run_id)
        for device, run_id in run_ids.items()
        if run_id
    }
    *others, reference = facts
    rows = []
    for device in others:
        here, there = (
            {place_of(row): row for row in facts[of].to_dict("records")} for of in (device, reference)
        )
        for pair in operator_pairs(facts[device], facts[reference]):
            one = here[pair.a] if pair.a else None
            other = there[pair.b] if pair.b else None
            if _kernel(one) != _kernel(other):
                found = one or other
                assert found is not None
                rows.append([device, found["module"] or found["source"], *_kernel(one), *_kernel(other)])
    header = ["device", "module", "operator", "SME unit", f"on {reference}", "SME unit there"]
    return TextTable.of(header, rows)


def _kernel(operator: Record | None) -> tuple[str | None, str | None]:
    """The operator's name, which says its kernel, without its number among those of its kind; its unit."""
    if operator is None:
        return None, None
    return re.sub(r" #\d+$", "", str(operator["name"])), unit_cell(operator)
