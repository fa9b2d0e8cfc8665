"""The operators of a report: one row each with both arms, the kernels they ran in, and their source line."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.values import known_or, shown_name
from sme2_assets.analysis.pairing import Place, place_of
from sme2_assets.report.explain import Explanation
from sme2_assets.report.kernels import main_kernels
from sme2_assets.report.tables import (
    WORK,
    TextTable,
    names_in_both,
    of_sme2,
    of_work,
    real_times,
    speedup_text,
    unit_cell,
    work_cells,
)

Record = Mapping[Hashable, Any]
TIMES = ("off ms", "on ms", "median ms", "speedup", "verdict", "share")
# Of the arm that the insights are about. The fill is that of tiles and vectors.
DETAILS = ("outer products", "fill", "packing", "instructions per streaming entry")
WORK_OF_PAIR = ("instructions, SME2 off", "instructions, SME2 on", "of them")


def operators_of_pair(
    explanation: Explanation, comparison: pd.DataFrame, usage: Mapping[str, pd.DataFrame]
) -> TextTable:
    """Every operator of both arms, the longest with SME2 on first; when emulated, the one that executes most,
    or in the order they ran if that was not counted.

    `comparison` has the rows of the table comparisons of the session, `usage` those of `kernel_usage` of
    each arm, where kernels are to be shown.
    """
    of_arm = {arm.run["sme2"]: _by_place(arm.bottlenecks) for arm in explanation.arms}
    kernels = {sme2: main_kernels(rows) for sme2, rows in usage.items()}
    compared = comparison[comparison["level"] == "operator"].to_dict("records")
    rows = []
    for pair in compared:
        off_place, on_place = _places(pair)
        on = of_arm["on"].get(on_place)
        off = of_arm["off"].get(off_place)
        facts = on or of_arm["off"][off_place]
        rows.append(
            (
                _order(facts),
                [
                    facts["execution_order"],
                    shown_name(facts, names_in_both(pair)),
                    _ms(pair["a_ns"]),
                    _ms(pair["b_ns"]),
                    _share(facts),
                    speedup_text(pair),
                    pair["verdict"],
                    None if on is None else unit_cell(on),
                    None if off is None else work_cells(off)[0],
                    *((None, None) if on is None else work_cells(on)),
                    *_details(facts),
                    *_facts(facts),
                    kernels.get("off", {}).get(off_place),
                    kernels.get("on", {}).get(on_place),
                ],
            )
        )
    table = TextTable.of(
        [
            # The columns that rows are sorted by must be visible without scrolling.
            *("order", "operator (off -> on)", "off ms", "on ms", "share", "speedup", "verdict", "SME unit"),
            *WORK_OF_PAIR,
            *DETAILS,
            *("category", "module", "source", "shapes"),
            *("main kernel with SME2 off", "main kernel with SME2 on"),
        ],
        [row for _, row in sorted(rows, key=lambda each: each[0])],
    )
    timed = real_times(table, comparison, *TIMES)
    return of_work(timed, explanation.subject.bottlenecks, *WORK_OF_PAIR, *DETAILS)


def operators_in_short(explanation: Explanation, comparison: pd.DataFrame) -> TextTable:
    """Where every operator of a pair ran and how long it took, or what it executed; the report also shows its
    source."""
    kernels = (f"main kernel with SME2 {sme2}" for sme2 in ("off", "on"))
    table = operators_of_pair(explanation, comparison, {})
    return table.without("source", "shapes", "verdict", *DETAILS, *kernels)


def operators_of_arm(explanation: Explanation, usage: pd.DataFrame) -> TextTable:
    """The same for one arm alone."""
    kernels = main_kernels(usage)
    operators = explanation.subject.bottlenecks
    table = TextTable.of(
        [
            *("order", "operator", "median ms", "share", "SME unit"),
            *WORK,
            *DETAILS,
            *("category", "module", "source", "shapes", "main kernel"),
        ],
        [
            [
                facts["execution_order"],
                shown_name(facts),
                _ms(facts["median_ns"]),
                _share(facts),
                unit_cell(facts),
                *work_cells(facts),
                *_details(facts),
                *_facts(facts),
                kernels.get(place_of(facts)),
            ]
            for facts in sorted(operators.to_dict("records"), key=_order)
        ],
    )
    table = of_work(real_times(table, operators, *TIMES), operators, *WORK, *DETAILS)
    return of_sme2(table, operators, "SME unit")


def _places(pair: Record) -> tuple[Place, Place]:
    """Where the operator is in each arm; a place that nothing has if it is only in the other arm."""
    first = () if pd.isna(pair["a_name"]) else place_of(pair)
    return first, place_of({**pair, "position": pair["b_position"]})


def _by_place(operators: pd.DataFrame) -> dict[tuple[object, ...], Record]:
    return {place_of(row): row for row in operators.to_dict("records")}


def _order(facts: Record) -> tuple[float, int]:
    rank = facts["rank"]
    return (float("inf") if pd.isna(rank) else float(rank), int(facts["execution_order"]))


def _facts(facts: Record) -> list[Any]:
    code = "" if pd.isna(facts["code"]) else f": {facts['code'].strip()}"
    source = None if pd.isna(facts["source"]) else f"{facts['source']}{code}"
    shapes = [facts[name] for name in ("input_shape", "output_shape") if not pd.isna(facts[name])]
    return [facts["category"], facts["module"], source, " -> ".join(shapes) or None]


def _details(facts: Record) -> list[str | None]:
    """What its counts show beyond how many there are; nothing where it does none of that."""
    products, entries, packing = (
        known_or(facts[name], 0) for name in ("outer_products", "streaming_entries", "packing_instructions")
    )
    macs, executed = (known_or(facts[name], 0) for name in ("macs", "macs_executed"))
    return [
        f"{products:,}" if products else None,
        f"{macs / executed:.0%}" if macs and executed else None,
        f"{packing / facts['instructions']:.0%}" if packing else None,
        f"{facts['instructions'] / entries:,.0f}" if entries else None,
    ]


def _ms(value: Any) -> str | None:
    return None if pd.isna(value) else f"{value / 1e6:.3f}"


def _share(facts: Record) -> str | None:
    return None if pd.isna(facts["share"]) else f"{facts['share']:.1%}"
