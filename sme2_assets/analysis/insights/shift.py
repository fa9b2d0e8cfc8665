"""Where the time, or under emulation the work and the kernels, went when SME2 was switched on."""

from __future__ import annotations

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.ceilings import known_part
from sme2_assets.analysis.insights.insight import ArmRows, Insight, Row, matters
from sme2_assets.analysis.insights.values import ms, ms_text, percent
from sme2_assets.analysis.unit import ON, UNKNOWN


def time_shift(off: ArmRows, on: ArmRows) -> Insight:
    parts = {arm.run["sme2"]: _parts(arm) for arm in (off, on)}
    rows = [
        {
            "category": name,
            **{f"off_{what}": value for what, value in parts["off"].get(name, _NOTHING).items()},
            **{f"on_{what}": value for what, value in parts["on"].get(name, _NOTHING).items()},
        }
        for name in dict.fromkeys([*parts["off"], *parts["on"]])
    ]
    rows.sort(key=lambda row: -row["off_ms"])
    before, after = (max(rows, key=lambda row: row[f"{arm}_share"]) for arm in ("off", "on"))
    pair = {"off_run_id": off.run["run_id"], "on_run_id": on.run["run_id"]}
    if not (_is_largest(before, rows, "off") and _is_largest(after, rows, "on")):
        title = claims.LARGEST_NOT_KNOWN.say(**pair)
    elif before["category"] == after["category"]:
        title = claims.STAYS_LARGEST.say(**after, **pair)
    else:
        title = claims.MOVED.say(
            **{"before": before["category"], "after": after["category"]},
            **{f"off_{what}": before[f"off_{what}"] for what in ("share", "text")},
            **{f"on_{what}": after[f"on_{what}"] for what in ("share", "text")},
            **pair,
        )
    changes = "; ".join(claims.CHANGE.say(**row, **pair) for row in rows)
    speedup = on.headroom["without_compute_speedup"]
    part = known_part(on, "CONV and GEMM")
    least_ns, most_ns = on.headroom["compute_ns"], on.headroom["compute_most_ns"]
    compute_share = on.share_of(least_ns) or 0.0
    return Insight(
        "bottleneck_shift",
        title,
        f"{changes}. "
        + claims.INFERENCE.say(
            off_ms=ms(off.headroom["inference_ns"]), on_ms=ms(on.headroom["inference_ns"]), **pair
        ),
        (off.measurement(), on.measurement(), *_kernel_evidence(off), *_kernel_evidence(on)),
        (claims.LEFT_OPEN if pd.isna(speedup) else claims.LEFT).say(
            run_id=on.run["run_id"],
            part=part[0].upper() + part[1:],
            left_share=compute_share,
            left_text=_share_text(compute_share, compute_share, on.share_of(most_ns) or 0.0),
            speedup=speedup,
        ),
        None,
        None,
        "measured",
        tuple(rows),
    )


_NOTHING = {"ms": 0.0, "share": 0.0, "least": 0.0, "most": 0.0, "ms_text": "0.000", "text": "0%"}


def _parts(arm: ArmRows) -> dict[str, Row]:
    """The time of each category and its share, with what the share may be: whole microseconds hide time of
    XNNPACK's operators, which is counted as overhead."""
    found: dict[str, Row] = {}
    inference_ns = float(arm.headroom["inference_ns"])
    for row in arm.category_summary.to_dict("records"):
        name, took_ns, share = row["category"], float(row["mean_ns"]), float(row["share"])
        overhead = name == "Overhead"
        operators = arm.bottlenecks
        hidden_ns = arm.hidden_ns(operators if overhead else operators[operators["category"] == name])
        change_ns = -hidden_ns if overhead else hidden_ns
        least, most = sorted((share, share + (change_ns / inference_ns if inference_ns else 0.0)))
        told = [took_ns, took_ns + change_ns] if matters(hidden_ns, arm) else [took_ns]
        found[name] = {
            "ms": ms(took_ns),
            "share": share,
            "least": least,
            "most": most,
            "ms_text": " to ".join(map(ms_text, sorted(told))),
            "text": _share_text(share, least, most),
        }
    return found


def _is_largest(part: Row, rows: list[Row], arm: str) -> bool:
    """Whether no other part can be larger, whatever whole microseconds hide."""
    return all(part[f"{arm}_least"] >= row[f"{arm}_most"] for row in rows if row is not part)


def _share_text(share: float, least: float, most: float) -> str:
    return percent(share) if most - least < 0.01 else " to ".join(dict.fromkeys(map(percent, (least, most))))


def kernel_shift(off: ArmRows, on: ArmRows) -> Insight:
    """The shift in work, where it was counted, and in kernels: all that an emulated pair can show."""
    counts = {arm.run["sme2"]: arm.bottlenecks.groupby("category") for arm in (off, on)}
    rows = []
    for name in sorted(set(off.bottlenecks["category"]) | set(on.bottlenecks["category"])):
        row: Row = {"category": name}
        for sme2, groups in counts.items():
            members = groups.get_group(name) if name in groups.groups else on.bottlenecks.iloc[:0]
            row[f"{sme2}_operators"] = len(members)
            row[f"{sme2}_sme2_operators"] = int((members["on_sme_unit"] == ON).sum())
            row[f"{sme2}_instructions"] = int(members["instructions"].sum())
            row[f"{sme2}_macs_on_unit"] = int(members["macs_on_unit"].sum())
        rows.append(row)
    taken, unknown = len(on.matrix_on(ON)), len(on.matrix_on(UNKNOWN))
    by_name = int((on.matrix_on(ON)["sme2_evidence"] == "name").sum())
    unsure = [f"{by_name} by name alone"] * bool(by_name) + [f"{unknown} unknown"] * bool(unknown)
    pair = {"off_run_id": off.run["run_id"], "on_run_id": on.run["run_id"]}
    kernels = claims.KERNELS.say(
        **pair,
        on=taken,
        total=len(on.matrix),
        unknown=unknown,
        by_name=by_name,
        unsure=" (" + ", ".join(unsure) + ")" if unsure else "",
        off=len(off.matrix_on(ON)),
    )
    title, work = _work_shift(off, on, pair) or (kernels, "")
    return Insight(
        "bottleneck_shift",
        title,
        (f"{work} {kernels}. " if work else "")
        + "Emulated: which kernels run is real. How far the bottleneck moves in time needs SME2 hardware.",
        (off.measurement(), on.measurement(), *_kernel_evidence(off), *_kernel_evidence(on)),
        "Nothing about time: no speedup follows from this." if taken or unknown else _no_kernel(on, pair),
        None,
        None,
        on.basis,
        tuple(rows),
    )


def _work_shift(off: ArmRows, on: ArmRows, pair: Row) -> tuple[str, str] | None:
    """Which part executes most in each arm, and what changed between them; None where it was not counted."""
    arms = {arm.run["sme2"]: arm.category_summary.set_index("category") for arm in (off, on)}
    work = pd.DataFrame(
        {
            f"{sme2}_{name}": rows[column]
            for sme2, rows in arms.items()
            for name, column in (("count", "instructions"), ("share", "instructions_share"))
        }
    )
    if any(rows["instructions"].isna().any() for rows in arms.values()):
        return None
    # A category that is in one arm alone executes nothing in the other.
    work = work.fillna(0.0).sort_values("off_count", ascending=False).rename_axis("category").reset_index()
    before, after = (work.loc[work[f"{sme2}_share"].idxmax()].to_dict() for sme2 in ("off", "on"))
    if before["category"] == after["category"]:
        title = claims.WORK_STAYS.say(**pair, **after)
    else:
        title = claims.WORK_MOVED.say(
            **pair,
            before=before["category"],
            after=after["category"],
            off_share=before["off_share"],
            on_share=after["on_share"],
        )
    changes = "; ".join(claims.WORK_CHANGE.say(**pair, **row) for row in work.to_dict("records"))
    in_all = claims.WORK_IN_ALL.say(**pair, **{f"{sme2}_count": work[f"{sme2}_count"].sum() for sme2 in arms})
    return title, f"{in_all}: {changes}."


def _no_kernel(on: ArmRows, pair: Row) -> str:
    """What it rules out that no CONV or GEMM is on the unit: an operator that is not known may be either."""
    not_known = int((~on.bottlenecks["known"].astype(bool)).sum())
    if not_known:
        return claims.SOME_NOT_KNOWN.say(**pair, count=not_known)
    return (claims.NO_KERNEL if len(on.matrix) else claims.NO_MATRIX).say(**pair)


def _kernel_evidence(arm: ArmRows) -> tuple[str, ...]:
    """What of CONV and GEMM was done on the SME unit, where that was counted or sampled."""
    run_id, state = arm.run["run_id"], arm.run["sme2"]
    if arm.matrix["macs_executed"].sum():
        done = {name: int(arm.matrix[name].sum()) for name in ("macs_executed", "macs_on_unit")}
        return (claims.MATRIX_WORK.say(run_id=run_id, state=state, **done),)
    told, sme = (int(arm.matrix[name].sum()) for name in ("telling_samples", "certain_sme_samples"))
    if not told:
        return ()
    return (claims.MATRIX_SAMPLES.say(run_id=run_id, state=state, sme=sme, told=told),)
