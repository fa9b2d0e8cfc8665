"""Where the time, or under emulation the kernels, went when SME2 was switched on."""

from __future__ import annotations

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.ceilings import known_part
from sme2_assets.analysis.insights.insight import ArmRows, Insight, Row
from sme2_assets.analysis.insights.values import ms
from sme2_assets.analysis.unit import ON, UNKNOWN


def time_shift(off: ArmRows, on: ArmRows) -> Insight:
    shares = {
        arm.run["sme2"]: arm.category_summary.set_index("category")[["mean_ns", "share"]] for arm in (off, on)
    }
    names = shares["off"].index.union(shares["on"].index, sort=False)
    rows = [
        {
            "category": name,
            "off_ms": ms(_value(shares["off"], name, "mean_ns")),
            "on_ms": ms(_value(shares["on"], name, "mean_ns")),
            "off_share": _value(shares["off"], name, "share"),
            "on_share": _value(shares["on"], name, "share"),
        }
        for name in names
    ]
    rows.sort(key=lambda row: -row["off_ms"])
    before = max(rows, key=lambda row: row["off_share"])
    after = max(rows, key=lambda row: row["on_share"])
    pair = {"off_run_id": off.run["run_id"], "on_run_id": on.run["run_id"]}
    if before["category"] == after["category"]:
        title = claims.STAYS_LARGEST.say(**after, **pair)
    else:
        title = claims.MOVED.say(
            **{"before": before["category"], "after": after["category"]},
            **{"off_share": before["off_share"], "on_share": after["on_share"]},
            **pair,
        )
    changes = "; ".join(claims.CHANGE.say(**row, **pair) for row in rows)
    speedup = on.headroom["without_compute_speedup"]
    part = known_part(on, "CONV and GEMM")
    compute_share = on.share_of(on.headroom["compute_ns"]) or 0.0
    return Insight(
        "bottleneck_shift",
        title,
        f"{changes}. "
        + claims.INFERENCE.say(
            off_ms=ms(off.headroom["inference_ns"]), on_ms=ms(on.headroom["inference_ns"]), **pair
        ),
        (off.measurement(), on.measurement(), *_kernel_evidence(off), *_kernel_evidence(on)),
        (claims.LEFT_OPEN if pd.isna(speedup) else claims.LEFT).say(
            run_id=on.run["run_id"], part=part[0].upper() + part[1:], share=compute_share, speedup=speedup
        ),
        None,
        None,
        "measured",
        tuple(rows),
    )


def kernel_shift(off: ArmRows, on: ArmRows) -> Insight:
    """The shift in kernels: all that an emulated pair can show."""
    counts = {arm.run["sme2"]: arm.bottlenecks.groupby("category") for arm in (off, on)}
    rows = []
    for name in sorted(set(off.bottlenecks["category"]) | set(on.bottlenecks["category"])):
        row: Row = {"category": name}
        for sme2, groups in counts.items():
            members = groups.get_group(name) if name in groups.groups else on.bottlenecks.iloc[:0]
            row[f"{sme2}_operators"] = len(members)
            row[f"{sme2}_sme2_operators"] = int((members["on_sme_unit"] == ON).sum())
            row[f"{sme2}_samples"] = int(members["telling_samples"].sum())
            row[f"{sme2}_sme_samples"] = int(members["certain_sme_samples"].sum())
        rows.append(row)
    taken, unknown = len(on.matrix_on(ON)), len(on.matrix_on(UNKNOWN))
    by_name = int((on.matrix_on(ON)["sme2_evidence"] == "name").sum())
    unsure = [f"{by_name} by name alone"] * bool(by_name) + [f"{unknown} unknown"] * bool(unknown)
    pair = {"off_run_id": off.run["run_id"], "on_run_id": on.run["run_id"]}
    return Insight(
        "bottleneck_shift",
        claims.KERNELS.say(
            **pair,
            on=taken,
            total=len(on.matrix),
            unknown=unknown,
            by_name=by_name,
            unsure=" (" + ", ".join(unsure) + ")" if unsure else "",
            off=len(off.matrix_on(ON)),
        ),
        "Emulated: which kernels run is real. How far the bottleneck moves in time needs SME2 hardware.",
        (off.measurement(), on.measurement(), *_kernel_evidence(off), *_kernel_evidence(on)),
        "Nothing about time: no speedup follows from this." if taken or unknown else _no_kernel(on, pair),
        None,
        None,
        on.basis,
        tuple(rows),
    )


def _no_kernel(on: ArmRows, pair: Row) -> str:
    """What it rules out that no CONV or GEMM is on the unit: an operator that is not known may be either."""
    not_known = int((~on.bottlenecks["known"].astype(bool)).sum())
    if not_known:
        return claims.SOME_NOT_KNOWN.say(**pair, count=not_known)
    return (claims.NO_KERNEL if len(on.matrix) else claims.NO_MATRIX).say(**pair)


def _kernel_evidence(arm: ArmRows) -> tuple[str, ...]:
    """Samples of CONV and GEMM in SME kernels, where any of them show which kernel it was."""
    told, sme = (int(arm.matrix[name].sum()) for name in ("telling_samples", "certain_sme_samples"))
    if not told:
        return ()
    run_id, state = arm.run["run_id"], arm.run["sme2"]
    return (claims.MATRIX_SAMPLES.say(run_id=run_id, state=state, sme=sme, told=told),)


def _value(frame: pd.DataFrame, name: str, column: str) -> float:
    return float(frame.loc[name, column]) if name in frame.index else 0.0
