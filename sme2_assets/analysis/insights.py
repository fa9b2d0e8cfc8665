"""Insights: what the rows of a run say about where to go next, ranked by the time that could be won.

Here belong conclusions from rows of the warehouse's views, each with its evidence and with what it
rules out. Reasons and ceilings are not judged here: they are read from `missed_sme2` and `headroom`.

A win is an upper bound, the time that would be gone if the thing took none. Wins of several insights
overlap and do not add up. Emulated times mean nothing: an emulated run has insights about kernels,
none about time. A reference, native on another instruction set, has insights about time, and none that
speaks of SME2. A projection is no measurement: it has no win and is ranked behind everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd

Basis = Literal["measured", "emulated", "predicted", "projection"]

KINDS = (
    "bottleneck_shift",
    "missed_sme2",
    "heavy_operator",
    "portable_cost",
    "layout_changes",
    "delegate_overhead",
    "framework_overhead",
    "amdahl_compute",
    "amdahl_data_movement",
    "projection",
)
MATRIX = ("CONV", "GEMM")
# What proves an SME2 kernel; a registered kernel may never have run.
PROOF = ("executed", "name")
HEAVY_SHARE = 0.05
# XNNPACK floors its times to whole microseconds: below this, a rate would be off by a fifth or more.
LEAST_RATED_NS = 5_000
# How much faster CONV and GEMM become on SME2, as published for CPUs that have it.
PUBLISHED_SPEEDUPS = (3.0, 15.0)

Row = dict[str, Any]


@dataclass(frozen=True)
class Insight:
    """One conclusion. `win_ns` and `win_share` are upper bounds, None where no time can be told.

    `basis` is what the conclusion rests on: `measured` on hardware; `emulated` for kernels seen under
    emulation; `predicted` from an operator's type alone; `projection` for arithmetic on published factors.
    """

    kind: str
    title: str
    detail: str
    evidence: tuple[str, ...]
    rules_out: str
    win_ns: float | None
    win_share: float | None
    basis: Basis
    rows: tuple[Row, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ArmRows:
    """One run: its `runs` row, and its rows of the views of that name."""

    run: Row
    bottlenecks: pd.DataFrame
    category_summary: pd.DataFrame
    missed_sme2: pd.DataFrame
    headroom: Row
    # The emulated run with SME2 on that shows the kernels of this one, if there is one.
    evidence_run_id: str | None = None

    @property
    def timed(self) -> bool:
        return self.run["fidelity"] != "emulated"

    @property
    def speaks_of_sme2(self) -> bool:
        return self.run["fidelity"] != "reference"

    @property
    def basis(self) -> Basis:
        return "measured" if self.timed else "emulated"

    @property
    def matrix(self) -> pd.DataFrame:
        return self.bottlenecks[self.bottlenecks["category"].isin(MATRIX)]

    @property
    def proven(self) -> pd.DataFrame:
        """CONV and GEMM operators that are known to have taken an SME2 kernel."""
        return self.matrix[self.matrix["sme2_evidence"].isin(PROOF)]

    def share_of(self, duration_ns: float) -> float | None:
        inference_ns = self.headroom["inference_ns"]
        return duration_ns / inference_ns if self.timed and inference_ns > 0 else None

    def measurement(self) -> str:
        """What its numbers rest on."""
        rounds, inferences = int(self.headroom["rounds"]), int(self.headroom["inferences"])
        if self.timed:
            flags = _names(self.run.get("flags"))
            disturbed = f"; the machine was not quiet ({_kinds(flags)}), which raises means" if flags else ""
            return (
                f"run {self.run['run_id']} on {device_text(self.run)}: means over {rounds} rounds, "
                f"{inferences} inferences with tracer{disturbed}"
            )
        return f"run {self.run['run_id']}: emulated, so kernels are real and times mean nothing"


def insights(subject: ArmRows, baseline: ArmRows | None = None) -> list[Insight]:
    """All insights about `subject`, ranked.

    The subject is the arm to make faster: SME2 on, or the only one that was measured. `baseline` is the
    arm with SME2 off of the same session.
    """
    found: list[Insight] = []
    if baseline is not None:
        found.append((_time_shift if subject.timed else _kernel_shift)(baseline, subject))
    found += _missed(subject)
    found += _portable_cost(subject)
    found += _layout_changes(subject)
    if subject.timed:
        found += _heavy_operators(subject, baseline)
        found += _overheads(subject)
    if subject.timed and subject.speaks_of_sme2:
        found += _ceilings(subject)
        found += _projection(subject)
    return ranked(found)


def device_text(run: Row) -> str:
    """What a run's times are of."""
    return f"{run['device']} ({run['arch']}, {run['cpu']})"


def ranked(found: Sequence[Insight]) -> list[Insight]:
    """By the time that could be won. The shift comes first, as what the rest is read against; the
    projection last, because it is none of the measurements."""

    def place(insight: Insight) -> tuple[int, float, int]:
        group = {"bottleneck_shift": 0, "projection": 3}.get(insight.kind, 2 if insight.win_ns is None else 1)
        return group, -(insight.win_ns or 0.0), KINDS.index(insight.kind)

    return sorted(found, key=place)


def _time_shift(off: ArmRows, on: ArmRows) -> Insight:
    shares = {
        arm.run["sme2"]: arm.category_summary.set_index("category")[["mean_ns", "share"]] for arm in (off, on)
    }
    names = shares["off"].index.union(shares["on"].index, sort=False)
    rows = [
        {
            "category": name,
            "off_ms": _ms(_value(shares["off"], name, "mean_ns")),
            "on_ms": _ms(_value(shares["on"], name, "mean_ns")),
            "off_share": _value(shares["off"], name, "share"),
            "on_share": _value(shares["on"], name, "share"),
        }
        for name in names
    ]
    rows.sort(key=lambda row: -row["off_ms"])
    before = max(rows, key=lambda row: row["off_share"])
    after = max(rows, key=lambda row: row["on_share"])
    if before["category"] == after["category"]:
        title = (
            f"{after['category']} stays the largest part: {after['off_share']:.0%} of the inference with "
            f"SME2 off, {after['on_share']:.0%} with it on"
        )
    else:
        title = (
            f"The bottleneck moved from {before['category']} ({before['off_share']:.0%} of the inference "
            f"with SME2 off) to {after['category']} ({after['on_share']:.0%} with it on)"
        )
    changes = "; ".join(
        f"{row['category']} {row['off_ms']:.3f} -> {row['on_ms']:.3f} ms "
        f"({row['off_share']:.0%} -> {row['on_share']:.0%})"
        for row in rows
    )
    ceiling = _ceiling_text(on.headroom["without_compute_speedup"])
    compute_share = on.share_of(on.headroom["compute_ns"]) or 0.0
    return Insight(
        "bottleneck_shift",
        title,
        f"{changes}. The inference with tracer: {_ms(off.headroom['inference_ns']):.3f} -> "
        f"{_ms(on.headroom['inference_ns']):.3f} ms.",
        (off.measurement(), on.measurement(), *_kernel_evidence(off), *_kernel_evidence(on)),
        f"CONV and GEMM are {compute_share:.0%} of what is left: faster kernels for them bring "
        f"no more than {ceiling}.",
        None,
        None,
        "measured",
        tuple(rows),
    )


def _kernel_shift(off: ArmRows, on: ArmRows) -> Insight:
    """The shift in kernels: all that an emulated pair can tell."""
    counts = {arm.run["sme2"]: arm.bottlenecks.groupby("category") for arm in (off, on)}
    rows = []
    for name in sorted(set(off.bottlenecks["category"]) | set(on.bottlenecks["category"])):
        row: Row = {"category": name}
        for sme2, groups in counts.items():
            members = groups.get_group(name) if name in groups.groups else on.bottlenecks.iloc[:0]
            row[f"{sme2}_operators"] = len(members)
            row[f"{sme2}_sme2_operators"] = int(members["sme2_evidence"].isin(PROOF).sum())
            row[f"{sme2}_samples"] = int(members["samples"].sum())
            row[f"{sme2}_sme_samples"] = int(members["sme_samples"].sum())
        rows.append(row)
    taken = len(on.proven)
    return Insight(
        "bottleneck_shift",
        f"{taken} of {len(on.matrix)} CONV and GEMM operators take SME2 kernels with SME2 on, "
        f"{len(off.proven)} with it off",
        "Emulated: which kernels run is real. How far the bottleneck moves in time needs SME2 hardware.",
        (off.measurement(), on.measurement(), *_kernel_evidence(off), *_kernel_evidence(on)),
        "Nothing about time: no speedup follows from this."
        if taken
        else "No operator takes an SME2 kernel, so SME2 cannot change the time of this model.",
        None,
        None,
        "emulated",
        tuple(rows),
    )


def _kernel_evidence(arm: ArmRows) -> tuple[str, ...]:
    """Samples of CONV and GEMM in SME kernels, where any were taken."""
    samples, sme = int(arm.matrix["samples"].sum()), int(arm.matrix["sme_samples"].sum())
    if not samples:
        return ()
    return (f"SME2 {arm.run['sme2']}: {sme} of {samples} samples of CONV and GEMM are in SME kernels",)


def _missed(subject: ArmRows) -> Iterator[Insight]:
    """One insight per reason. Off alone, what is to be expected; the view says on what basis."""
    missed = subject.missed_sme2
    for (reason, basis), members in missed.groupby(["reason", "basis"], sort=True):
        win_ns = float(members["mean_ns"].sum()) if subject.timed else None
        expected = subject.run["sme2"] == "off"
        verb = "would stay" if expected else "stayed"
        evidence = [subject.measurement()]
        if basis == "emulated":
            evidence.append(f"kernels seen in the emulated run {members['evidence_run_id'].iloc[0]}")
        if basis == "predicted":
            evidence.append("predicted from the operators' types: no run with SME2 on shows it")
        evidence += _sample_evidence(members)
        yield Insight(
            "missed_sme2",
            f"{_count(members, 'CONV or GEMM operator')} {verb} off the SME unit: {reason}"
            + (" (predicted)" if basis == "predicted" else ""),
            " ".join(dict.fromkeys(members["because"]))
            + ("" if win_ns is None else f" Together: {_ms(win_ns):.3f} ms."),
            tuple(evidence),
            _rest_of_matrix(subject),
            win_ns,
            None if win_ns is None else subject.share_of(win_ns),
            {"observed": subject.basis, "emulated": "emulated", "predicted": "predicted"}[basis],
            _operator_rows(members),
        )


def _sample_evidence(members: pd.DataFrame) -> list[str]:
    samples, sme = int(members["samples"].sum()), int(members["sme_samples"].sum())
    if not samples:
        return []
    borders = ", all of them at the border to another operator" if sme else ""
    return [f"{sme} of their {samples} samples are in SME kernels{borders}"]


def _rest_of_matrix(subject: ArmRows) -> str:
    total, rest = len(subject.matrix), len(subject.matrix) - len(subject.missed_sme2)
    if subject.run["sme2"] == "on":
        executed = int((subject.proven["sme2_evidence"] == "executed").sum())
        return (
            f"The other {rest} of {total} CONV and GEMM operators have SME2 kernels ({executed} sampled in "
            f"them, {rest - executed} by name): they are not what is missed."
        )
    if subject.evidence_run_id is not None:
        return f"The other {rest} of {total} CONV and GEMM operators take SME2 kernels under emulation."
    return (
        f"Nothing about the other {rest} of {total} CONV and GEMM operators: only a run with SME2 on can "
        "tell, and emulation has one."
    )


def _heavy_operators(subject: ArmRows, baseline: ArmRows | None) -> Iterator[Insight]:
    operators = subject.bottlenecks
    heavy = operators[operators["share"] > HEAVY_SHARE].sort_values("rank")
    rest = operators[operators["share"] <= HEAVY_SHARE]
    for operator in heavy.to_dict("records"):
        facts = [_place(operator)]
        rate = _rate(operator)
        if rate is not None:
            facts.append(f"{operator['macs'] / 1e6:.1f} million multiply-accumulates at {rate:.1f} GFLOP/s")
        off = _same_operator(baseline, operator)
        if off is not None:
            facts.append(f"{_ms(off['mean_ns']):.3f} ms with SME2 off")
        facts.append(_evidence_text(operator) if subject.run["sme2"] == "on" else "")
        yield Insight(
            "heavy_operator",
            f"{operator['name']} takes {operator['share']:.1%} of the inference",
            "; ".join([f"{_ms(operator['mean_ns']):.3f} ms", *(fact for fact in facts if fact)]) + ".",
            (subject.measurement(),),
            f"{_not_the_cause(operator, subject)}The {len(rest)} operators below {HEAVY_SHARE:.0%} take "
            f"{rest['share'].sum():.0%} together.",
            float(operator["mean_ns"]),
            float(operator["share"]),
            "measured",
            _operator_rows(heavy[heavy["rank"] == operator["rank"]]),
        )


def _not_the_cause(operator: Row, subject: ArmRows) -> str:
    """What SME2 has to do with it, as a sentence with a space behind it; nothing of a reference."""
    if not subject.speaks_of_sme2:
        return ""
    if operator["category"] not in MATRIX:
        return f"It is {operator['category']}: no SME2 kernel would change it. "
    if operator["sme2_evidence"] in PROOF:
        return "It is not a missed kernel: it has one of SME2. "
    missed = subject.missed_sme2
    same = missed[
        (missed["backend"] == operator["backend"])
        & (missed["delegate"].fillna(-1) == _or(operator["delegate"], -1))
        & (missed["position"] == operator["position"])
    ]
    if not same.empty:
        return f"A CPU with SME2 does not help it as it is: {same['reason'].iloc[0]}. "
    if subject.evidence_run_id is not None:
        return "It is not out of SME2's reach: it has an SME2 kernel under emulation. "
    return "Whether SME2 would take it is not shown. "


def _portable_cost(subject: ArmRows) -> Iterator[Insight]:
    operators = subject.bottlenecks
    portable = operators[operators["backend"] == "portable"].sort_values(["rank", "execution_order"])
    if portable.empty:
        return
    win_ns = float(portable["mean_ns"].sum()) if subject.timed else None
    names = ", ".join(dict.fromkeys(portable["op_type"]))
    calls = int(subject.headroom["delegate_calls"])
    yield Insight(
        "portable_cost",
        f"{_count(portable, 'operator')} outside delegates: {_shortened(names)}",
        ("" if win_ns is None else f"Together: {_ms(win_ns):.3f} ms. ")
        + f"One between delegates splits them: there are {calls} delegate calls.",
        (subject.measurement(), *(_place(row) for row in portable.head(3).to_dict("records") if _place(row))),
        f"The other {len(operators) - len(portable)} operators are delegated.",
        win_ns,
        None if win_ns is None else subject.share_of(win_ns),
        subject.basis,
        _operator_rows(portable),
    )


def _overheads(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    calls = int(headroom["delegate_calls"])
    delegated = int(headroom["operators"] - headroom["portable_operators"])
    delegate_ns, framework_ns = headroom["delegate_overhead_ns"], headroom["framework_overhead_ns"]
    if calls and delegate_ns > 0:
        rounding_ns = min(1000.0 * delegated, delegate_ns)
        yield Insight(
            "delegate_overhead",
            f"{calls} delegate {'call costs' if calls == 1 else 'calls cost'} {_ms(delegate_ns):.3f} ms "
            "beyond their operators",
            f"{_ms(delegate_ns / calls):.3f} ms per call: entering, leaving, and what XNNPACK does between "
            "operators.",
            (subject.measurement(),),
            f"XNNPACK floors its times, so up to {_ms(rounding_ns):.3f} ms of it may be its operators' own "
            f"({delegated} operators, a microsecond each).",
            float(delegate_ns),
            subject.share_of(delegate_ns),
            "measured",
        )
    if framework_ns > 0:
        yield Insight(
            "framework_overhead",
            f"ExecuTorch itself takes {_ms(framework_ns):.3f} ms",
            "Method::execute beyond delegate calls and portable operators.",
            (subject.measurement(),),
            f"A leaner runtime brings no more than this: {subject.share_of(framework_ns) or 0:.1%} "
            "of the inference.",
            float(framework_ns),
            subject.share_of(framework_ns),
            "measured",
        )


def _ceilings(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    parts = (
        ("amdahl_compute", "CONV and GEMM", "compute", "a faster kernel for CONV and GEMM, whichever,"),
        ("amdahl_data_movement", "Data Movement", "data_movement", "removing every copy and transpose"),
    )
    for kind, name, column, remedy in parts:
        win_ns = headroom[f"{column}_ns"]
        if win_ns <= 0:
            continue
        rest_ns = headroom[f"without_{column}_ns"]
        speedup = _ceiling_text(headroom[f"without_{column}_speedup"])
        yield Insight(
            kind,
            f"Ceiling: if {name} took no time, {_ms(rest_ns):.3f} ms would be left, {speedup} at most",
            f"{name} {'take' if kind == 'amdahl_compute' else 'takes'} {_ms(win_ns):.3f} of "
            f"{_ms(headroom['inference_ns']):.3f} ms (Amdahl's law).",
            (subject.measurement(),),
            f"That {remedy} brings more than {speedup} is ruled out.",
            float(win_ns),
            subject.share_of(win_ns),
            "measured",
        )


def _projection(subject: ArmRows) -> Iterator[Insight]:
    """What the published factors would give, where SME2 cannot be measured."""
    has_sme2 = "sme2" in _names(subject.run.get("cpu_features_seen"))
    if subject.run["sme2"] != "off" or has_sme2 or subject.matrix.empty:
        return
    inference_ns = subject.headroom["inference_ns"]
    eligible_ns = float(subject.matrix["mean_ns"].sum() - subject.missed_sme2["mean_ns"].sum())
    eligible = len(subject.matrix) - len(subject.missed_sme2)
    if inference_ns <= 0 or eligible_ns <= 0:
        return
    left_ns = [inference_ns - eligible_ns + eligible_ns / factor for factor in PUBLISHED_SPEEDUPS]
    low, high = (inference_ns / left for left in left_ns)
    if subject.evidence_run_id is not None:
        why = f"those that take SME2 kernels in the emulated run {subject.evidence_run_id}"
    else:
        why = "all but those whose type has no SME2 kernel; no run with SME2 on shows the others"
    slowest, fastest = PUBLISHED_SPEEDUPS
    yield Insight(
        "projection",
        f"Projection, not a measurement: {low:.2f}x to {high:.2f}x for the whole model on a CPU with SME2",
        f"If {eligible} of {len(subject.matrix)} CONV and GEMM operators ({_ms(eligible_ns):.3f} of "
        f"{_ms(inference_ns):.3f} ms) became {slowest:.0f} to {fastest:.0f} times faster, as published for "
        "SME2, and nothing else changed.",
        (subject.measurement(), f"operators counted: {why}"),
        f"More than {high:.2f}x, unless CONV and GEMM gain more than {fastest:.0f} times. "
        "It does not say what this model gains on a given CPU: measure there.",
        None,
        None,
        "projection",
        (
            {
                "speedup_low": low,
                "speedup_high": high,
                "factors": list(PUBLISHED_SPEEDUPS),
                "operators": eligible,
                "of_operators": len(subject.matrix),
                "eligible_ms": _ms(eligible_ns),
                "inference_ms": _ms(inference_ns),
                "evidence_run_id": subject.evidence_run_id,
            },
        ),
    )


# Layout changes. `Convert` changes precision or quantisation; views only rename dimensions.
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
    """Layout operators that could go, and why; `win_ns` is None when emulated."""

    operators: tuple[Row, ...]
    why: str
    win_ns: float | None


def _layout_changes(subject: ArmRows) -> Iterator[Insight]:
    sequence = subject.bottlenecks.sort_values("execution_order").to_dict("records")
    changes = [
        *_pairs(sequence, _TRANSPOSES, _transposes_cancel),
        *_pairs(sequence, _CONVERTS, _convert_back),
    ]
    paired = {row["execution_order"] for change in changes for row in change.operators}
    changes += _at_borders(sequence, paired)
    if not changes:
        return
    win_ns = sum(change.win_ns or 0.0 for change in changes) if subject.timed else None
    movers = subject.bottlenecks[subject.bottlenecks["op_type"].isin(_TRANSPOSES | _CONVERTS)]
    found = {row["execution_order"] for change in changes for row in change.operators}
    yield Insight(
        "layout_changes",
        f"{len(found)} of {len(movers)} transposes and conversions could go or be moved",
        "Candidates, judged by order and shape: "
        + "; ".join(f"{count}x {why}" for why, count in _counted(change.why for change in changes))
        + ".",
        (subject.measurement(),),
        f"Nothing in order and shape speaks against the other {len(movers) - len(found)}.",
        win_ns,
        None if win_ns is None else subject.share_of(win_ns),
        subject.basis,
        tuple(
            {
                "operators": [row["name"] for row in change.operators],
                "places": [[_or(row["delegate"], None), row["position"]] for row in change.operators],
                "why": change.why,
                "win_ms": None if change.win_ns is None else _ms(change.win_ns),
            }
            for change in changes
        ),
    )


def _pairs(
    sequence: list[Row],
    kinds: frozenset[str],
    judge: Callable[[Row, Row, list[Row]], tuple[str, bool] | None],
) -> Iterator[_Change]:
    """Each operator of these kinds with the next one, where the two undo one another. None is used twice."""
    first: int | None = None
    for index, row in enumerate(sequence):
        if row["op_type"] not in kinds:
            continue
        if first is not None:
            verdict = judge(sequence[first], row, sequence[first + 1 : index])
            if verdict is not None:
                why, both = verdict
                times = [sequence[first]["mean_ns"], row["mean_ns"]]
                win_ns = None if pd.isna(times).any() else float(sum(times) if both else min(times))
                yield _Change((sequence[first], row), why, win_ns)
                first = None
                continue
        first = index


def _transposes_cancel(first: Row, second: Row, between: list[Row]) -> tuple[str, bool] | None:
    border = " across a delegate border" if _border_between(first, second) else ""
    shapes = (first["input_shape"], second["output_shape"])
    known = not any(pd.isna(shape) for shape in shapes)
    if not between:
        if known and shapes[0] == shapes[1]:
            return f"a transpose and one that undoes it{border}", True
        return f"two transposes in a row that could be one{border}", False
    if all(row["category"] == "Elementwise" and row["op_type"] not in _ALONG_AN_AXIS for row in between):
        return f"transposes around elementwise operators, which need no layout{border}", True
    if border and all(row["backend"] == "portable" for row in between):
        return "transposes out of and back into delegates, around portable operators", True
    return None


def _convert_back(first: Row, second: Row, between: list[Row]) -> tuple[str, bool] | None:
    if not all(row["op_type"] in _VIEWS | _TRANSPOSES for row in between):
        return None
    # Where the program tells, only dequantise and quantise again counts.
    directions = [_direction(row) for row in (first, second)]
    if None not in directions and directions != ["dequantise", "quantise"]:
        return None
    border = " across a delegate border" if _border_between(first, second) else ""
    return (
        f"conversions there and back around operators that only move data, if the scales agree{border}",
        True,
    )


def _direction(row: Row) -> str | None:
    names = " ".join([row["op_type"], *_names(row["edge_ops"])])
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
                win_ns = None if pd.isna(row["mean_ns"]) else float(row["mean_ns"])
                yield _Change((row,), f"{what} that a delegate {name} with", win_ns)


def _border_between(first: Row, second: Row) -> bool:
    return _or(first["delegate"], -1) != _or(second["delegate"], -1)


def _counted(texts: Iterator[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return list(counts.items())


def _operator_rows(operators: pd.DataFrame) -> tuple[Row, ...]:
    columns = ("delegate", "position", "name", "category", "backend", "module", "source", "sme2_evidence")
    return tuple(
        {
            **{column: _or(row[column], None) for column in columns},
            "mean_ms": None if pd.isna(row["mean_ns"]) else _ms(row["mean_ns"]),
            "share": _or(row["share"], None),
            "rounds": int(row["rounds"]),
        }
        for row in operators.to_dict("records")
    )


def _same_operator(arm: ArmRows | None, operator: Row) -> Row | None:
    """The operator of the other arm, by place: another kernel often has another name."""
    if arm is None:
        return None
    rows = arm.bottlenecks
    same = rows[
        (rows["backend"] == operator["backend"])
        & (rows["delegate"].fillna(-1) == _or(operator["delegate"], -1))
        & (rows["position"] == operator["position"])
    ]
    return None if same.empty else same.iloc[0].to_dict()


def _place(operator: Row) -> str:
    """Where in the model an operator comes from; empty when that is not known."""
    module, source = _or(operator["module"], ""), _or(operator["source"], "")
    kind = _or(operator["module_type"], "")
    if module and kind:
        module = f"{module} ({kind})"
    return ", ".join(part for part in (module, source) if part)


def _evidence_text(operator: Row) -> str:
    if operator["category"] not in MATRIX:
        return ""
    if operator["sme2_evidence"] == "executed":
        return f"{operator['sme_samples']} of {operator['samples']} samples in SME kernels"
    return f"evidence of an SME2 kernel: {operator['sme2_evidence']}"


def _rate(operator: Row) -> float | None:
    if pd.isna(operator["gflops"]) or operator["median_ns"] < LEAST_RATED_NS:
        return None
    return float(operator["gflops"])


def _ceiling_text(speedup: float | None) -> str:
    return "no bound" if speedup is None or pd.isna(speedup) else f"{speedup:.2f}x"


def _value(frame: pd.DataFrame, name: str, column: str) -> float:
    return float(frame.loc[name, column]) if name in frame.index else 0.0


def _count(rows: pd.DataFrame, what: str) -> str:
    return f"{len(rows)} {what}" + ("" if len(rows) == 1 else "s")


def _shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 3].rstrip(", ") + "..."


def _names(value: Any) -> list[str]:
    """A list column's value; frames of DuckDB hold arrays, or nothing."""
    if value is None or isinstance(value, float) or value is pd.NA:
        return []
    return [str(name) for name in value]


def _kinds(flags: list[str]) -> str:
    """What the flags are about, without their details."""
    return ", ".join(dict.fromkeys(flag.partition(":")[0] for flag in flags))


def _or(value: Any, default: Any) -> Any:
    """`value`, or the default for a missing one; plain Python numbers."""
    if value is None or pd.isna(value):
        return default
    return value.item() if hasattr(value, "item") else value


def _ms(duration_ns: float) -> float:
    return float(duration_ns) / 1e6
