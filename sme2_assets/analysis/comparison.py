"""One arm against another, SME2 on against off or any other factor: the rows of the `comparisons` table.

A pair is compared only if the two runs were made together and differ in their factor alone; otherwise the
comparison says why not. The first arm is `a`, the second `b`: with the factor SME2, off and on. Emulated
pairs are compared in what is real under emulation (which operators took SME2 kernels), never in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sme2_assets.analysis.categories import Category
from sme2_assets.analysis.confidence import Conditions, confidence
from sme2_assets.analysis.factors import arm_label, arm_name, factor_of, is_or_are, why_not_one_factor
from sme2_assets.analysis.pairing import KEYS, ONE_ARM, Place, operator_pairs, place_of
from sme2_assets.analysis.passes import passes_fault
from sme2_assets.analysis.placebo import Placebo, is_placebo, placebo_of, times_of
from sme2_assets.analysis.statistics import (
    MOST_RESOLUTION,
    Times,
    adjusted_p_values,
    bounded_speedup,
    minimal_detectable_effect,
    slow_rounds,
    speedup_verdict,
    threshold_of,
)
from sme2_assets.analysis.unit import ON, UNKNOWN
from sme2_assets.evidence.digits import beside
from sme2_assets.evidence.numerics import AS_IS

_TIMES = (
    "a_ns",
    "b_ns",
    "speedup",
    "speedup_low",
    "speedup_high",
    "bound_low",
    "bound_high",
    "n",
    "p_value",
    "p_adjusted",
    "minimal_detectable_effect",
    "slow_rounds_a",
    "slow_rounds_b",
)
_ON_UNIT = ("sme2_operators_a", "sme2_operators_b", "sme2_operators_unknown")
_COUNTS = ("operators", "matrix_operators", *_ON_UNIT)
_MATRIX = (Category.CONV.value, Category.GEMM.value)
# Left empty where a ratio would mislead.
_RATIO = ("speedup", "speedup_low", "speedup_high", "bound_low", "bound_high", "p_value", "p_adjusted")
_FACTS = ("category", *KEYS, "b_position", "op_type", "a_name", "b_name", "placebo", *_COUNTS)
# Where the ratio of medians and that of means are further apart, inferences have modes that one ratio hides.
_MOST_APART = 1.10
_BELOW_THE_CLOCK = "Below the clock's resolution: XNNPACK's whole microseconds can hide all of the time."


@dataclass(frozen=True)
class ArmRounds:
    """One arm's rows: its `runs` row and its rows of the `*_rounds` views.

    Operator rows also have `on_sme_unit` and `certain_sme_samples` from operator_facts. Times of a clock that
    floors have columns `least_ns` and `most_ns` next to `median_ns`, where they differ from it. `conditions`
    are those that the arm was measured under, if known.
    """

    run: dict[str, Any]
    latency_rounds: pd.DataFrame
    category_rounds: pd.DataFrame
    operator_rounds: pd.DataFrame
    conditions: Conditions | None = None


def why_not_a_pair(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """Why the two runs may not be compared at all, or None."""
    # Of several arms, each of the others is compared with the first.
    first = "a" if a["experiment"] in ("arms", "aa") else "off"
    if not a["arm"] == first < b["arm"]:
        wanted = "off and on" if first == "off" else "a and another one"
        return f"the runs are the arms {a['arm']} and {b['arm']}, not {wanted}"
    if a["session_id"] != b["session_id"]:
        return (
            f"the runs are of different sessions ({a['session_id']} and {b['session_id']}): "
            "they were not interleaved"
        )
    return why_not_one_factor(a, b)


def why_times_do_not_compare(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """Why a pair's times give no speedup, or None."""
    if a["fidelity"] == "emulated":
        return "Emulated times mean nothing; which kernels ran and what they computed is real."
    if a["fidelity"] == "reference" and a["experiment"] == "sme2":
        return f"Times on {a['arch']} say nothing about SME2."
    for run in (a, b):
        if fault := passes_fault(run):
            return f"With {arm_name(run)}: {fault}"
    return why_outputs_differ(a, b)


def why_outputs_differ(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """How the outputs of an arm are wrong, or how those of the two arms differ, or None."""
    for run in (a, b):
        # Written so that an unknown SQNR (NaN) does not pass. A finished program has no eager model: only its
        # arms are compared with each other.
        if run["precision"] == AS_IS:
            continue
        if run["sqnr_db"] >= run["sqnr_threshold_db"]:
            fault = run["eager_fault"]
        else:
            reached = beside(run["sqnr_db"], run["sqnr_threshold_db"], 1)
            fault = f"{reached} dB against eager, {run['sqnr_threshold_db']:g} dB needed"
        if isinstance(fault, str):
            return f"With {arm_name(run)} the outputs are wrong: {fault}."
    if (factor := factor_of(b)) is not None and not factor.one_program:
        return None
    if isinstance(b["arms_fault"], str):
        return f"The arms do not compute the same: {b['arms_fault']}."
    # For runs from before the arms had bounds of their own.
    if pd.isna(b["arms_values"]) and not b["arms_sqnr_db"] >= b["sqnr_threshold_db"]:
        reached = beside(b["arms_sqnr_db"], b["sqnr_threshold_db"], 1)
        return f"The outputs of the arms differ: {reached} dB, {b['sqnr_threshold_db']:g} dB needed."
    return None


def compare(a: ArmRounds, b: ArmRounds, noise_floor: float | None = None) -> pd.DataFrame:
    """The comparison of a true pair (see `why_not_a_pair`): model, categories, operators.

    `noise_floor` is the ratio that identical arms reach on this device: differences below it are noise, and
    so is the difference of the session's placebo operators; if those show a bias, there is no verdict.
    """
    reason = why_times_do_not_compare(a.run, b.run)
    pairs = list(_pairs(a, b))
    placebo = Placebo()
    if reason is None and (a.run["fidelity"], a.run["experiment"]) == ("hardware", "sme2"):
        placebo = placebo_of([pair for facts, pair in pairs if facts["placebo"]])
    bias = placebo.bias(noise_floor)
    rows = [{**facts, **_timed(pair, reason)} for facts, pair in pairs]
    for level in ("model", "category", "operator"):
        floors = [noise_floor or 1.0, placebo.deviation, (level != "model" and placebo.scatter) or 1.0]
        floor = max(floors) if noise_floor is not None or max(floors) > 1 else None
        _judge([row for row in rows if row["level"] == level], (a.run, b.run), floor, bias)
    if a.run["experiment"] != "aa":
        rows[0] |= _between_modes(rows[0], pairs[0][1])
    frame = pd.DataFrame(rows)
    frame["placebo_operators"] = placebo.operators if reason is None else None
    for column, name in (("ratio", "placebo_ratio"), ("low", "placebo_low"), ("high", "placebo_high")):
        frame[name] = None if placebo.joint is None else getattr(placebo.joint, column)
    frame["placebo_scatter"] = placebo.scatter
    frame["aa_noise_floor"] = noise_floor
    frame["confidence"], frame["confidence_reason"] = _confidence(a, b, rows, reason, bias)
    for column in (
        *("variant", "platform", "session_id", "model", "precision"),
        *("device", "arch", "threads", "cpus", "power_mode", "method", "fidelity"),
    ):
        frame[column] = a.run[column]
    factor = factor_of(a.run)
    frame["factor"] = factor.name if factor else None
    for name, arm in (("a", a), ("b", b)):
        frame[f"{name}_run_id"] = arm.run["run_id"]
        frame[f"{name}_value"] = factor.value(arm.run) if factor else None
    return frame


def _confidence(
    a: ArmRounds, b: ArmRounds, rows: list[dict[str, Any]], reason: str | None, bias: str | None
) -> tuple[str | None, str | None]:
    """How far the times of the session can be relied on; None where they do not compare."""
    if reason is not None or a.conditions is None or b.conditions is None:
        return None, None
    against = [] if bias is None else ["operators with the same kernel in both arms differ"]
    for arm, name in ((a, "a"), (b, "b")):
        if rows[0][f"slow_rounds_{name}"]:
            against.append(f"some rounds are a slow mode ({arm_label(arm.run)})")
    found = confidence("measured", [a.conditions, b.conditions], against)
    return found.level, found.why


def _pairs(a: ArmRounds, b: ArmRounds) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Each thing that is compared, with its times per round in both arms."""
    factor = factor_of(a.run)
    if factor is not None and not factor.one_network:
        # Operators of two networks have nothing to do with each other: they are counted, not paired.
        yield {**_facts("model"), **_counted(a, b)}, _joined(a.latency_rounds, b.latency_rounds, [])
        return
    operators = list(_operator_pairs(a, b))
    facts = [of_operator for of_operator, _ in operators]
    yield {**_facts("model"), **_summed(a.run, facts)}, _joined(a.latency_rounds, b.latency_rounds, [])
    categories = _joined(a.category_rounds, b.category_rounds, ["category"])
    for (category,), group in categories.groupby(["category"], sort=True):
        # Counted from the operator rows, so that the levels add up even where the arms differ.
        of_category = [of_operator for of_operator in facts if of_operator["category"] == category]
        counts = _summed(a.run, of_category)
        yield {**_facts("category", category=category), **counts}, group
    yield from operators


def _operator_pairs(a: ArmRounds, b: ArmRounds) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    pairs = operator_pairs(a.operator_rounds, b.operator_rounds)
    rounds = _joined(
        _of_pairs(a.operator_rounds, [pair.a for pair in pairs]),
        _of_pairs(b.operator_rounds, [pair.b for pair in pairs]),
        ["pair"],
    )
    for number, group in rounds.groupby("pair", sort=True):
        pair = pairs[number]
        a_name, b_name = _first(group["name_a"]), _first(group["name_b"])
        arm = "a" if a_name is not None else "b"
        yield (
            _facts(
                "operator",
                **dict(zip(KEYS, pair.a or pair.b or (), strict=True)),
                b_position=pair.b[-1] if pair.b else None,
                category=_first(group[f"category_{arm}"]),
                op_type=_first(group[f"op_type_{arm}"]),
                a_name=a_name,
                b_name=b_name,
                placebo=is_placebo(group),
                **_counts(
                    a.run,
                    pair.b is not None,
                    group["category_b"].isin(_MATRIX).any(),
                    (group["on_sme_unit_a"] == ON).any(),
                    (group["on_sme_unit_b"] == ON).any(),
                    (group["on_sme_unit_b"] == UNKNOWN).any(),
                ),
            ),
            group.assign(why_alone=pair.why_alone),
        )


def _counted(a: ArmRounds, b: ArmRounds) -> dict[str, int | None]:
    """The same counts for operators that are not paired."""
    first, second = (arm.operator_rounds.drop_duplicates(KEYS) for arm in (a, b))
    return _counts(
        a.run,
        len(second),
        second["category"].isin(_MATRIX).sum(),
        (first["on_sme_unit"] == ON).sum(),
        (second["on_sme_unit"] == ON).sum(),
        (second["on_sme_unit"] == UNKNOWN).sum(),
    )


def _of_pairs(rounds: pd.DataFrame, places: list[Place | None]) -> pd.DataFrame:
    """The rows of one arm with the number of the pair that each belongs to."""
    number = {place: index for index, place in enumerate(places) if place is not None}
    numbers = [number[place_of(row)] for row in rounds[KEYS].to_dict("records")]
    return rounds.drop(columns=["delegate", "position"]).assign(pair=numbers)


def _counts(run: dict[str, Any], *counts: int) -> dict[str, int | None]:
    """The counts of a row: all operators, and matrix operators, are those of the second arm.

    An operator that may or may not have a partner would otherwise count once for each arm. A reference says
    nothing about the SME unit.
    """
    unknown = _ON_UNIT if run["fidelity"] == "reference" else ()
    named = zip(_COUNTS, counts, strict=True)
    return {name: None if name in unknown else int(count) for name, count in named}


def _summed(run: dict[str, Any], operators: list[dict[str, Any]]) -> dict[str, int | None]:
    return _counts(run, *(sum(operator[name] or 0 for operator in operators) for name in _COUNTS))


def _facts(level: str, **known: Any) -> dict[str, Any]:
    return {"level": level, **dict.fromkeys(_FACTS), **known}


def _joined(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Both arms side by side; rows that only one of them has are kept, with nothing on the other side."""
    return a.merge(b, how="outer", on=["round", *keys], suffixes=("_a", "_b"), validate="one_to_one")


def _first(values: pd.Series) -> str | None:
    """The value of a column that has one distinct value or none."""
    there = values.dropna()
    return None if there.empty else str(there.iloc[0])


def _why_not_one_thing(pair: pd.DataFrame) -> str | None:
    """Why the two sides of a pair cannot be compared, or None."""
    missing = pair[["median_ns_a", "median_ns_b"]].isna()
    if missing.all(axis=0).any():
        return str(pair["why_alone"].iloc[0]) if "why_alone" in pair else ONE_ARM
    return "It is not in every round of both arms." if missing.any(axis=None) else None


def _timed(pair: pd.DataFrame, reason: str | None) -> dict[str, Any]:
    """Times and speedup of one pair of series; only the reason if times do not compare."""
    reason = reason or _why_not_one_thing(pair)
    if reason is not None:
        return {**dict.fromkeys(_TIMES), "verdict": "not comparable", "reason": reason}
    a, b = times_of(pair, "a"), times_of(pair, "b")
    row = {
        **dict.fromkeys(_TIMES),
        "a_ns": float(pair["median_ns_a"].median()),
        "b_ns": float(pair["median_ns_b"].median()),
        "n": len(pair),
    }
    if min(*a.least_ns, *b.least_ns) <= 0:
        return {**row, "verdict": "insufficient data", "reason": _BELOW_THE_CLOCK}
    return {**row, "times": (a, b)}


def _judge(
    rows: list[dict[str, Any]],
    runs: tuple[dict[str, Any], dict[str, Any]],
    noise_floor: float | None,
    bias: str | None,
) -> None:
    """Gives the rows of one level their verdicts, with false discoveries under control across them."""
    names = arm_name(runs[0]), arm_name(runs[1])
    subject = f"{names[1]} {is_or_are(names[1])}"
    judged = [(row, *row.pop("times")) for row in rows if "times" in row]
    estimates = [bounded_speedup(a, b) for _, a, b in judged]
    adjusted = adjusted_p_values([estimate.p_value for estimate in estimates])
    for row in rows:
        row["noise_floor"] = noise_floor
    for (row, a, b), estimate, p_adjusted in zip(judged, estimates, adjusted, strict=True):
        least, most = estimate.bounds or (estimate.ratio, estimate.ratio)
        verdict, reason = speedup_verdict(
            estimate, noise_floor=noise_floor, adjusted_p=p_adjusted, subject=subject
        )
        modes = slow_rounds(a), slow_rounds(b)
        row |= {
            "speedup": estimate.ratio if estimate.resolution <= MOST_RESOLUTION else None,
            "speedup_low": estimate.low,
            "speedup_high": estimate.high,
            "bound_low": least,
            "bound_high": most,
            "p_value": estimate.p_value,
            "p_adjusted": p_adjusted,
            "minimal_detectable_effect": minimal_detectable_effect(
                _middle(a), _middle(b), noise_floor=noise_floor, resolution=estimate.resolution
            ),
            "slow_rounds_a": len(modes[0]),
            "slow_rounds_b": len(modes[1]),
        }
        # A slow mode in the same rounds of both arms is the machine's, and pairing cancels it. Between
        # identical arms it is the very noise that is being measured.
        mixed = modes[0] != modes[1] and runs[0]["experiment"] != "aa"
        if mixed:
            reason += f" {_modes_text(a, b, modes, names)}"
        if bias is not None:
            verdict, reason = "not comparable", bias
        elif mixed and not _holds_between_modes(verdict, a, b, modes, threshold_of(noise_floor)):
            verdict = "insufficient data"
            reason = f"{_modes_text(a, b, modes, names)} A ratio would mix two states of the machine."
        row |= {"verdict": verdict, "reason": reason}
        if bias is not None or (mixed and verdict == "insufficient data"):
            row |= dict.fromkeys(_RATIO)


def _between_modes(model: dict[str, Any], pair: pd.DataFrame) -> dict[str, Any]:
    """What becomes of the verdict where the median inference is of one kind and the mean of several, as with
    inputs of several sizes, or branches: neither ratio is the model's."""
    if model["speedup"] is None:
        return {}
    # Both in the same way over the rounds: some that were slow are no disagreement.
    median, mean = (
        float((pair[f"{name}_ns_a"] / pair[f"{name}_ns_b"]).median()) for name in ("median", "mean")
    )
    contrary = model["verdict"] in ("faster", "slower") and (mean > 1) != (median > 1)
    if not contrary and 1 / _MOST_APART <= mean / median <= _MOST_APART:
        return {}
    reason = (
        f"The median inference gives {beside(median, 1, 2)}x, the mean one {beside(mean, 1, 2)}x: inferences "
        "are of several kinds, and no one ratio is theirs. Measure each kind as a program of its own."
    )
    return {**dict.fromkeys(_RATIO), "verdict": "insufficient data", "reason": reason}


def _middle(times: Times) -> np.ndarray:
    return np.sqrt(np.multiply(times.least_ns, times.most_ns))


def _by_mode(times: Times, slow: list[int]) -> tuple[float, float]:
    """The medians of an arm's ordinary and of its slow rounds; equal without a slow mode."""
    middle = _middle(times)
    ordinary = np.delete(middle, slow)
    return float(np.median(ordinary)), float(np.median(middle[slow] if slow else ordinary))


def _holds_between_modes(
    verdict: str, a: Times, b: Times, modes: tuple[list[int], list[int]], threshold: float
) -> bool:
    """Whether the verdict holds whichever modes the two arms happen to be in."""
    (a_fast, a_slow), (b_fast, b_slow) = _by_mode(a, modes[0]), _by_mode(b, modes[1])
    if verdict == "faster":
        return a_fast / b_slow >= threshold
    return verdict == "slower" and a_slow / b_fast <= 1 / threshold


def _modes_text(a: Times, b: Times, modes: tuple[list[int], list[int]], names: tuple[str, str]) -> str:
    said = []
    for arm, times, slow in ((names[0], a, modes[0]), (names[1], b, modes[1])):
        fast_ns, slow_ns = _by_mode(times, slow)
        if slow:
            said.append(
                f"{len(slow)} of {len(times.least_ns)} rounds with {arm} are a slow mode, "
                f"{slow_ns / fast_ns:.2f} times as long as the others."
            )
    return " ".join(said)
