"""SME2 on against off: the rows of the `comparisons` table.

A pair is compared only when the two runs were made together and differ in the SME2 state alone;
otherwise the comparison says why not. Emulated pairs are compared in what is real under emulation
(which operators took SME2 kernels), never in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sme2_assets.analysis.pairing import KEYS, ONE_ARM, Place, operator_pairs, place_of
from sme2_assets.analysis.statistics import (
    Speedup,
    adjusted_p_values,
    minimal_detectable_effect,
    paired_speedup,
    speedup_verdict,
)
from sme2_assets.evidence.numerics import AS_IS

_TIMES = (
    "off_ns",
    "on_ns",
    "speedup",
    "speedup_low",
    "speedup_high",
    "n",
    "p_value",
    "p_adjusted",
    "minimal_detectable_effect",
)
_COUNTS = ("operators", "sme2_operators_off", "sme2_operators_on")
_FACTS = ("category", *KEYS, "on_position", "op_type", "off_name", "on_name", *_COUNTS)


@dataclass(frozen=True)
class ArmRounds:
    """One arm's rows: its `runs` row and its rows of the `*_rounds` views."""

    run: dict[str, Any]
    latency_rounds: pd.DataFrame
    category_rounds: pd.DataFrame
    operator_rounds: pd.DataFrame


def why_not_a_pair(off: dict[str, Any], on: dict[str, Any]) -> str | None:
    """Why the two runs may not be compared at all, or None."""
    if (off["arm"], on["arm"]) not in (("off", "on"), ("a", "b")):
        return f"the runs are the arms {off['arm']} and {on['arm']}, not off and on"
    if off["session_id"] != on["session_id"]:
        return (
            f"the runs are of different sessions ({off['session_id']} and {on['session_id']}): "
            "they were not interleaved"
        )
    for column, what in (
        ("variant", "models"),
        ("pte_sha256", "model files"),
        ("runner_pair" if not pd.isna(off["runner_pair"]) else "runner_sha256", "runners"),
        ("device", "devices"),
        ("arch", "architectures"),
        ("threads", "thread counts"),
        ("cpus", "CPUs"),
        ("power_mode", "power modes"),
        ("method", "methods"),
        ("fidelity", "fidelities"),
    ):
        # A run from before a column was there has nothing in it, and so has its other arm.
        if off[column] != on[column] and not (pd.isna(off[column]) and pd.isna(on[column])):
            return f"the runs have different {what} ({off[column]} and {on[column]})"
    return None


def why_times_do_not_compare(off: dict[str, Any], on: dict[str, Any]) -> str | None:
    """Why a pair's times give no speedup, or None."""
    if off["fidelity"] == "emulated":
        return "Emulated times mean nothing; which kernels ran and what they computed is real."
    if off["fidelity"] == "reference" and off["experiment"] == "sme2":
        return f"Times on {off['arch']} say nothing about SME2."
    return why_outputs_differ(off, on)


def why_outputs_differ(off: dict[str, Any], on: dict[str, Any]) -> str | None:
    """How the outputs of an arm are wrong, or those of the two arms different, or None."""
    for run in (off, on):
        # Written so that an unknown SQNR (NaN) does not pass. A finished program has no eager model: only its
        # arms are compared.
        if run["precision"] == AS_IS:
            continue
        if run["sqnr_db"] >= run["sqnr_threshold_db"]:
            fault = run["eager_fault"]
        else:
            fault = f"{run['sqnr_db']:.1f} dB against eager, {run['sqnr_threshold_db']:g} dB needed"
        if isinstance(fault, str):
            return f"With SME2 {run['sme2']} the outputs are wrong: {fault}."
    if isinstance(on["arms_fault"], str):
        return f"The arms do not compute the same: {on['arms_fault']}."
    # In runs from before the arms had bounds of their own.
    if pd.isna(on["arms_values"]) and not on["arms_sqnr_db"] >= on["sqnr_threshold_db"]:
        return (
            f"The outputs of the arms differ: {on['arms_sqnr_db']:.1f} dB, "
            f"{on['sqnr_threshold_db']:.1f} dB needed."
        )
    return None


def compare(off: ArmRounds, on: ArmRounds, noise_floor: float | None = None) -> pd.DataFrame:
    """The comparison of a true pair (see `why_not_a_pair`): model, categories, operators.

    `noise_floor` is the ratio that identical arms reach on this device: what stays below it is noise.
    """
    reason = why_times_do_not_compare(off.run, on.run)
    rows = [{**facts, **_timed(pair, reason)} for facts, pair in _pairs(off, on)]
    for level in ("model", "category", "operator"):
        _judge([row for row in rows if row["level"] == level], noise_floor)
    frame = pd.DataFrame(rows)
    frame["noise_floor"] = noise_floor
    for column in (
        *("variant", "platform", "session_id", "experiment", "model", "precision"),
        *("device", "arch", "threads", "cpus", "power_mode", "method", "fidelity"),
    ):
        frame[column] = off.run[column]
    frame["off_run_id"] = off.run["run_id"]
    frame["on_run_id"] = on.run["run_id"]
    return frame


def _pairs(off: ArmRounds, on: ArmRounds) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Each thing that is compared, with its times per round in both arms."""
    operators = list(_operator_pairs(off, on))
    facts = [of_operator for of_operator, _ in operators]
    yield {**_facts("model"), **_counts(facts)}, _joined(off.latency_rounds, on.latency_rounds, [])
    categories = _joined(off.category_rounds, on.category_rounds, ["category"])
    for (category,), group in categories.groupby(["category"], sort=True):
        # Counted from the operator rows, so that the levels add up even where the arms differ.
        counts = _counts([of_operator for of_operator in facts if of_operator["category"] == category])
        yield {**_facts("category", category=category), **counts}, group
    yield from operators


def _operator_pairs(off: ArmRounds, on: ArmRounds) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    pairs = operator_pairs(off.operator_rounds, on.operator_rounds)
    rounds = _joined(
        _of_pairs(off.operator_rounds, [pair.off for pair in pairs]),
        _of_pairs(on.operator_rounds, [pair.on for pair in pairs]),
        ["pair"],
    )
    for number, group in rounds.groupby("pair", sort=True):
        pair = pairs[number]
        off_name, on_name = _first(group["name_off"]), _first(group["name_on"])
        arm = "off" if off_name is not None else "on"
        yield (
            _facts(
                "operator",
                **dict(zip(KEYS, pair.off or pair.on or (), strict=True)),
                on_position=pair.on[-1] if pair.on else None,
                category=_first(group[f"category_{arm}"]),
                op_type=_first(group[f"op_type_{arm}"]),
                off_name=off_name,
                on_name=on_name,
                operators=1,
                sme2_operators_off=int((group["sme2_evidence_off"] == "name").any()),
                sme2_operators_on=int((group["sme2_evidence_on"] == "name").any()),
            ),
            group.assign(why_alone=pair.why_alone),
        )


def _of_pairs(rounds: pd.DataFrame, places: list[Place | None]) -> pd.DataFrame:
    """The rows of one arm with the number of the pair that each belongs to."""
    number = {place: index for index, place in enumerate(places) if place is not None}
    numbers = [number[place_of(row)] for row in rounds[KEYS].to_dict("records")]
    return rounds.drop(columns=KEYS).assign(pair=numbers)


def _counts(operators: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(operator[name] for operator in operators) for name in _COUNTS}


def _facts(level: str, **known: Any) -> dict[str, Any]:
    return {"level": level, **dict.fromkeys(_FACTS), **known}


def _joined(off: pd.DataFrame, on: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Both arms side by side; what only one of them has is kept, with nothing on the other side."""
    return off.merge(on, how="outer", on=["round", *keys], suffixes=("_off", "_on"), validate="one_to_one")


def _first(values: pd.Series) -> str | None:
    """The first value that is there, of a column that has one value or none."""
    there = values.dropna()
    return None if there.empty else str(there.iloc[0])


def _why_not_one_thing(pair: pd.DataFrame) -> str | None:
    """Why what stands in one place of both arms cannot be compared, or None."""
    missing = pair[["median_ns_off", "median_ns_on"]].isna()
    if missing.all(axis=0).any():
        return str(pair["why_alone"].iloc[0]) if "why_alone" in pair else ONE_ARM
    return "It is not in every round of both arms." if missing.any(axis=None) else None


def _timed(pair: pd.DataFrame, reason: str | None) -> dict[str, Any]:
    """Times, speedup and verdict of one pair of series; nothing but the reason when times do not compare."""
    reason = reason or _why_not_one_thing(pair)
    if reason is not None:
        return {**dict.fromkeys(_TIMES), "verdict": "not comparable", "reason": reason}
    off_ns, on_ns = pair["median_ns_off"], pair["median_ns_on"]
    times = {"off_ns": float(off_ns.median()), "on_ns": float(on_ns.median()), "n": len(pair)}
    if (off_ns <= 0).any() or (on_ns <= 0).any():
        # XNNPACK reports whole microseconds: an operator of 0 us has no ratio.
        return {
            **dict.fromkeys(_TIMES),
            **times,
            "verdict": "insufficient data",
            "reason": "The time is below the resolution of the trace (1 us for XNNPACK operators).",
        }
    estimate = paired_speedup(off_ns.tolist(), on_ns.tolist())
    return {
        **dict.fromkeys(_TIMES),
        **times,
        "speedup": estimate.ratio,
        "speedup_low": estimate.low,
        "speedup_high": estimate.high,
        "p_value": estimate.p_value,
        "minimal_detectable_effect": minimal_detectable_effect(off_ns.tolist(), on_ns.tolist()),
    }


def _judge(rows: list[dict[str, Any]], noise_floor: float | None) -> None:
    """Gives the rows of one level their verdicts, with false discoveries under control across them."""
    open_rows = [row for row in rows if "verdict" not in row]
    adjusted = adjusted_p_values([row["p_value"] for row in open_rows])
    for row, p_adjusted in zip(open_rows, adjusted, strict=True):
        estimate = Speedup(row["speedup"], row["speedup_low"], row["speedup_high"], row["n"], row["p_value"])
        row["p_adjusted"] = p_adjusted
        row["verdict"], row["reason"] = speedup_verdict(
            estimate, noise_floor=noise_floor, adjusted_p=p_adjusted
        )
