"""The operators of a report: one row each with both arms, the kernels they ran in, and their source line."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.values import shown_name
from sme2_assets.analysis.pairing import Place, place_of
from sme2_assets.report.explain import Explanation
from sme2_assets.report.kernels import main_kernels
from sme2_assets.report.tables import TextTable, names_in_both, of_sme2, real_times, speedup_text, unit_cell

Record = Mapping[Hashable, Any]
TIMES = ("off ms", "on ms", "median ms", "speedup", "verdict", "share")


def operators_of_pair(
    explanation: Explanation, comparison: pd.DataFrame, usage: Mapping[str, pd.DataFrame]
) -> TextTable:
    """Every operator of both arms, the longest with SME2 on first; in the order they ran when emulated.

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
        facts = on or of_arm["off"][off_place]
        rows.append(
            (
                _order(facts),
                [
                    facts["execution_order"],
                    shown_name(facts, names_in_both(pair)),
                    _ms(pair["off_ns"]),
                    _ms(pair["on_ns"]),
                    _share(facts),
                    speedup_text(pair),
                    pair["verdict"],
                    None if on is None else unit_cell(on),
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
            *("category", "module", "source", "shapes"),
            *("main kernel with SME2 off", "main kernel with SME2 on"),
        ],
        [row for _, row in sorted(rows, key=lambda each: each[0])],
    )
    return real_times(table, comparison, *TIMES)


def operators_in_short(explanation: Explanation, comparison: pd.DataFrame) -> TextTable:
    """Where every operator of a pair ran and how long it took; the report also shows its source."""
    kernels = (f"main kernel with SME2 {sme2}" for sme2 in ("off", "on"))
    return operators_of_pair(explanation, comparison, {}).without("source", "shapes", "verdict", *kernels)


def operators_of_arm(explanation: Explanation, usage: pd.DataFrame) -> TextTable:
    """The same for one arm alone."""
    kernels = main_kernels(usage)
    operators = explanation.subject.bottlenecks
    table = TextTable.of(
        [
            *("order", "operator", "median ms", "share", "SME unit"),
            *("category", "module", "source", "shapes", "main kernel"),
        ],
        [
            [
                facts["execution_order"],
                shown_name(facts),
                _ms(facts["median_ns"]),
                _share(facts),
                unit_cell(facts),
                *_facts(facts),
                kernels.get(place_of(facts)),
            ]
            for facts in sorted(operators.to_dict("records"), key=_order)
        ],
    )
    return of_sme2(real_times(table, operators, *TIMES), operators, "SME unit")


def _places(pair: Record) -> tuple[Place, Place]:
    """Where the operator is in each arm; a place that nothing has if it is only in the other arm."""
    off, on = place_of(pair), place_of({**pair, "position": pair["on_position"]})
    if pd.isna(pair["off_name"]):
        return (), on
    # Compared before arms could have different positions: they had the same one.
    return off, off if pd.isna(pair["on_position"]) and not pd.isna(pair["on_name"]) else on


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


def _ms(value: Any) -> str | None:
    return None if pd.isna(value) else f"{value / 1e6:.3f}"


def _share(facts: Record) -> str | None:
    return None if pd.isna(facts["share"]) else f"{facts['share']:.1%}"
