"""Transposes and conversions that could go, judged by order and shape.

`Convert` changes precision or quantisation; views only rename dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import ArmRows, Insight, Row
from sme2_assets.analysis.insights.values import known_or, ms, names_in

_TRANSPOSES = frozenset(
    {"Transpose", "permute_copy", "transpose_copy", "t_copy", "_to_dim_order_copy", "_clone_dim_order"}
)
_CONVERTS = frozenset(
    {"Convert", "quantize_per_tensor", "quantize_per_channel", "quantize_per_token"}
    | {"dequantize_per_tensor", "dequantize_per_channel", "dequantize_per_token", "_to_copy"}
)
_VIEWS = frozenset({"Static Reshape", "Static Expand Dims", "Fuse Dims", "Split Dims", "Copy"}) | frozenset(
    {"view_copy", "et_view", "squeeze_copy", "unsqueeze_copy", "expand_copy", "clone", "alias_copy"}
)
# Elementwise by category, but they work along an axis: a transpose does not commute with them.
_ALONG_AN_AXIS = frozenset(
    {"Softmax", "Normalize", "RoPE", "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm"}
    | {"_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "tril", "PReLU"}
)


@dataclass(frozen=True)
class _Change:
    """Layout operators that could go, and why; `win_ns` is of an inference, and None when emulated."""

    operators: tuple[Row, ...]
    why: str
    win_ns: float | None


def layout_changes(subject: ArmRows) -> Iterator[Insight]:
    ordered = subject.bottlenecks.sort_values("execution_order")
    # What belongs to two sequences never runs in one inference, however close it starts.
    changes = [
        change
        for _, operators in ordered.groupby("path")
        for change in _changes(subject.run["run_id"], operators.to_dict("records"))
    ]
    if not changes:
        return
    movers = subject.bottlenecks[subject.bottlenecks["op_type"].isin(_TRANSPOSES | _CONVERTS)]
    found = {row["execution_order"] for change in changes for row in change.operators}
    win_ns = None
    if subject.timed:
        hidden_ns = subject.hidden_ns(ordered[ordered["execution_order"].isin(found)])
        win_ns = sum(change.win_ns or 0.0 for change in changes) + hidden_ns
    yield subject.insight(
        "layout_changes",
        claims.LAYOUT.say(
            run_id=subject.run["run_id"],
            count=len(found),
            total=len(movers),
            kinds=sorted(_TRANSPOSES | _CONVERTS),
        ),
        "Candidates, judged by order and shape: "
        + "; ".join(f"{count}x {why}" for why, count in Counter(change.why for change in changes).items())
        + ".",
        claims.OTHER_LAYOUT.say(count=len(movers) - len(found)),
        win_ns=win_ns,
        rows=tuple(
            {
                "operators": [row["name"] for row in change.operators],
                "places": [[known_or(row["delegate"], None), row["position"]] for row in change.operators],
                "why": change.why,
                "win_ms": None if change.win_ns is None else ms(change.win_ns),
            }
            for change in changes
        ),
    )


def _changes(run_id: str, sequence: list[Row]) -> list[_Change]:
    """In one operator sequence."""
    changes = [
        *_pairs(run_id, sequence, _TRANSPOSES, _transposes_cancel),
        *_pairs(run_id, sequence, _CONVERTS, _convert_back),
    ]
    paired = {row["execution_order"] for change in changes for row in change.operators}
    return [*changes, *_at_borders(sequence, paired)]


def _pairs(
    run_id: str,
    sequence: list[Row],
    kinds: frozenset[str],
    judge: Callable[[Row, Row, list[Row]], tuple[str, bool] | None],
) -> Iterator[_Change]:
    """Each operator of these kinds with the next one, where the two undo each other. None is used twice."""
    first: int | None = None
    for index, row in enumerate(sequence):
        if row["op_type"] not in kinds:
            continue
        if first is not None:
            verdict = judge(sequence[first], row, sequence[first + 1 : index])
            if verdict is not None:
                what, both = verdict
                pair = (sequence[first], row)
                why = claims.LAYOUT_PAIR.say(
                    run_id=run_id,
                    what=what,
                    border=" across a delegate border" if _border_between(*pair) else "",
                    orders=[one["execution_order"] for one in pair],
                )
                times = [one["per_inference_ns"] for one in pair]
                win_ns = None if pd.isna(times).any() else float(sum(times) if both else min(times))
                yield _Change(pair, why, win_ns)
                first = None
                continue
        first = index


def _transposes_cancel(first: Row, second: Row, between: list[Row]) -> tuple[str, bool] | None:
    elementwise = all(
        row["category"] == "Elementwise" and row["op_type"] not in _ALONG_AN_AXIS for row in between
    )
    # They keep the shape: another one is of another tensor, whose transpose only comes next in time.
    if elementwise and _same_shape(first["output_shape"], second["input_shape"]) is False:
        return None
    if not between:
        if _same_shape(first["input_shape"], second["output_shape"]):
            return "a transpose and one that undoes it", True
        return "two transposes in a row that could be one", False
    if elementwise:
        return "transposes around elementwise operators, which need no layout", True
    if _border_between(first, second) and all(row["backend"] == "portable" for row in between):
        return "transposes around portable operators", True
    return None


def _same_shape(one: str | None, other: str | None) -> bool | None:
    """None if either is not known."""
    return None if pd.isna(one) or pd.isna(other) else one == other


def _convert_back(first: Row, second: Row, between: list[Row]) -> tuple[str, bool] | None:
    if not all(row["op_type"] in _VIEWS | _TRANSPOSES for row in between):
        return None
    # Where the program gives the directions, only a dequantise followed by a quantise counts.
    directions = [_direction(row) for row in (first, second)]
    if None not in directions and directions != ["dequantise", "quantise"]:
        return None
    return "conversions there and back around operators that only move data, if the scales agree", True


def _direction(row: Row) -> str | None:
    names = " ".join([row["op_type"], *names_in(row["edge_ops"])])
    if "dequantize" in names:
        return "dequantise"
    return "quantise" if "quantize" in names else None


def _at_borders(sequence: list[Row], paired: set[int]) -> Iterator[_Change]:
    """Transposes and conversions that a delegate begins or ends with."""
    delegates: dict[int, list[Row]] = {}
    for row in sequence:
        if row["backend"] != "portable":
            delegates.setdefault(int(row["delegate"]), []).append(row)
    for rows in delegates.values():
        for name, run in (("begins", rows), ("ends", rows[::-1])):
            for row in run:
                if row["op_type"] not in _TRANSPOSES | _CONVERTS | _VIEWS:
                    break
                if row["op_type"] in _VIEWS or row["execution_order"] in paired:
                    continue
                paired.add(row["execution_order"])
                what = "a transpose" if row["op_type"] in _TRANSPOSES else "a conversion"
                win_ns = None if pd.isna(row["per_inference_ns"]) else float(row["per_inference_ns"])
                yield _Change((row,), f"{what} that a delegate {name} with", win_ns)


def _border_between(first: Row, second: Row) -> bool:
    return known_or(first["delegate"], -1) != known_or(second["delegate"], -1)
