"""The history of every series, of times and of counted work, and where it became slower or more."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sme2_assets.analysis.change_points import (
    HUGE_RATIO,
    MIN_NIGHTS,
    NIGHTS_BEFORE,
    NIGHTS_BEFORE_HUGE,
    ChangePoint,
    regressions,
)
from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.joint_steps import Others, others_at_step
from sme2_assets.errors import Sme2Error
from sme2_assets.warehouse import read
from sme2_assets.warehouse.ingest import DERIVATION
from sme2_assets.warehouse.schema import REGRESSIONS
from sme2_assets.warehouse.store import Warehouse

SERIES = [*read.SERIES, "sme2", "category"]
# The category of what all operators of an emulated run executed.
WORK = "work"
# What is the same for all that one machine measures.
DEVICE = ("platform", "device", "arch")
# How many sessions a series needs to show a step to HUGE_RATIO times or more, and to show any slow-down.
LEAST_SESSIONS = NIGHTS_BEFORE_HUGE + MIN_NIGHTS
ENOUGH_SESSIONS = NIGHTS_BEFORE + MIN_NIGHTS

# The sessions of each series that has rows, counted in a different way from `series_of`.
_COUNTED = (
    "FROM (SELECT count(*) FILTER (median_ns > 0) AS sessions FROM history WHERE ($variants IS NULL "
    "OR list_contains($variants, variant)) AND ($platform IS NULL OR platform = $platform) "
    f"AND (category = 'latency' OR derivation = {DERIVATION}) "
    f"GROUP BY {', '.join(SERIES)})"
)
_NEEDED = (
    f"a step to {HUGE_RATIO:g} times or more can be found with at least {LEAST_SESSIONS}, a smaller one with "
    f"{ENOUGH_SESSIONS}"
)
TOO_FEW = Claim(
    "Too few sessions to tell whether a series became slower: {longest}, and " + _NEEDED + ".",
    f"SELECT coalesce(max(sessions), 0) < {LEAST_SESSIONS} {_COUNTED}",
)
NONE_FOUND = Claim(
    "No slow-down was found in {told} series{only_huge}{untold}.",
    f"SELECT count(*) FILTER (sessions >= {LEAST_SESSIONS}) = $told AND $told > 0 "
    f"AND count(*) FILTER (sessions BETWEEN {LEAST_SESSIONS} AND {ENOUGH_SESSIONS - 1}) = $huge_only "
    f"AND count(*) FILTER (sessions < {LEAST_SESSIONS}) = $short {_COUNTED}",
)


_WORK_SERIES = [name for name in SERIES if name != "category"]
_KEYS = ", ".join(_WORK_SERIES)
# One thread executes the same every time. Several do not always divide tiles alike, and their waits may fail:
# one run in thirteen executes a few instructions more or less.
_SCATTER = "if(threads > 1, 1.0001, 1)"
# Of runs whose rows the code of today made, each with the one before it in its series. One run shows a step.
# It lasts as long as no later run is back.
_WORK = f"""
SELECT
    *,
    lag(instructions) OVER series AS before_instructions,
    lag(macs_on_unit) OVER series AS before_macs_on_unit,
    CASE WHEN lag(run_id) OVER series IS NOT NULL THEN concat_ws(
        ', ',
        if(pte_sha256 IS DISTINCT FROM lag(pte_sha256) OVER series, 'program', NULL),
        if(executorch_version IS DISTINCT FROM lag(executorch_version) OVER series, 'ExecuTorch', NULL),
        if(runner_sha256 IS DISTINCT FROM lag(runner_sha256) OVER series, 'runner', NULL),
        if(emulator IS DISTINCT FROM lag(emulator) OVER series, 'emulator', NULL)
    ) END AS changed,
    coalesce(
        least(instructions, min(instructions) OVER later) > {_SCATTER} * lag(instructions) OVER series
        OR greatest(macs_on_unit, max(macs_on_unit) OVER later) < lag(macs_on_unit) OVER series, false
    ) AS is_more
FROM work_history
WHERE derivation = {DERIVATION} AND ($variants IS NULL OR list_contains($variants, variant))
AND ($platform IS NULL OR platform = $platform)
WINDOW
    series AS (PARTITION BY {_KEYS} ORDER BY sequence, started_at),
    later AS (
        PARTITION BY {_KEYS} ORDER BY sequence, started_at ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    )
ORDER BY {_KEYS}, sequence, started_at
"""
# By another route than above: the newest run of each series executes least.
NO_MORE_WORK = Claim(
    "No operators execute more than before in {told} series of counted work.",
    "SELECT count(*) = $told AND $told > 0 AND bool_and(newest_is_least) FROM (SELECT "
    f"max_by(instructions, (sequence, started_at)) <= {_SCATTER} * min(instructions) AND "
    "max_by(macs_on_unit, (sequence, started_at)) IS NOT DISTINCT FROM max(macs_on_unit) AS newest_is_least "
    f"FROM work_history WHERE derivation = {DERIVATION} "
    "AND ($variants IS NULL OR list_contains($variants, variant)) "
    "AND ($platform IS NULL OR platform = $platform) "
    f"GROUP BY {_KEYS} HAVING count(*) > 1)",
)


def work_of(
    warehouse: Warehouse, variants: Collection[str] | None = None, platform: str | None = None
) -> pd.DataFrame:
    """The counted runs of every series, oldest first, each with the run before it (`before_*`, `changed`);
    `is_more`: it executes more, or less of it on the unit, and so did all runs since."""
    asked: dict[str, object] = {
        "variants": None if variants is None else sorted(variants),
        "platform": platform,
    }
    return warehouse.query(_WORK, asked).assign(category=WORK)


def series_of(warehouse: Warehouse) -> dict[tuple, pd.DataFrame]:
    """Every series of the view `history`, oldest run first; `place` is a run's place in the order of all.

    XNNPACK reports whole microseconds: a category that takes less has no time to compare. If the code that
    assigns categories has changed, runs whose rows other code made have no categories here until they are
    rebuilt: a new category for an operator is not a change in its time.
    """
    rows = warehouse.query(
        "SELECT * FROM history JOIN (SELECT run_id, model FROM runs) USING (run_id) "
        "WHERE category = 'latency' OR derivation = ? ORDER BY sequence, started_at",
        [DERIVATION],
    )
    rows["median_ns"] = rows["median_ns"].where(rows["median_ns"] > 0)
    rows["place"] = rows.groupby("run_id", sort=False).ngroup()
    # Facts that a trace from elsewhere does not state, such as its device, are still part of its key.
    keys = rows[SERIES].astype(object).where(rows[SERIES].notna(), None)
    groups = rows.groupby([keys[name] for name in SERIES], sort=True, dropna=False)
    return {tuple(keys.loc[group.index[0]]): group.reset_index(drop=True) for _, group in groups}


def find_regressions(warehouse: Warehouse, acknowledged: Path) -> pd.DataFrame:
    """The slow-downs in all series, and the steps to more work."""
    series = series_of(warehouse)
    found = regressions({key: rows["median_ns"].tolist() for key, rows in series.items()})
    known = acknowledged_runs(acknowledged)
    records = []
    for key, changes in found.items():
        for change in changes:
            first_slow = series[key].iloc[change.index]
            others = _others(series, key, change)
            records.append(
                {
                    **dict(zip(SERIES, key, strict=True)),
                    "fidelity": first_slow["fidelity"],
                    "night": first_slow["started_at"],
                    "run_id": first_slow["run_id"],
                    "before_ns": change.before,
                    "after_ns": change.after,
                    "ratio": change.ratio,
                    "p_value": change.p_value,
                    "others_watched": others.watched,
                    "others_slower": others.slower,
                    "acknowledged": first_slow["run_id"] in known,
                }
            )
    work = work_of(warehouse)
    records += [_more_work(step, known) for step in work[work["is_more"]].to_dict("records")]
    found_rows = pd.DataFrame(records, columns=[column.name for column in REGRESSIONS.columns])
    counts = [column.name for column in REGRESSIONS.columns if column.type in ("INTEGER", "BIGINT")]
    return found_rows.astype(dict.fromkeys(counts, "Int64"))


def _more_work(step: Mapping[Hashable, Any], known: set[str]) -> dict[str, Any]:
    """A row of `work_of` as one of `regressions`."""
    return {
        **{str(name): value for name, value in step.items()},
        "night": step["started_at"],
        "after_instructions": step["instructions"],
        "after_macs_on_unit": step["macs_on_unit"],
        "ratio": step["instructions"] / step["before_instructions"],
        "acknowledged": step["run_id"] in known,
    }


def write_regressions(warehouse: Warehouse, acknowledged: Path) -> pd.DataFrame:
    """Stores the slow-downs in all series in place of those found before."""
    found = find_regressions(warehouse, acknowledged)
    warehouse.write(REGRESSIONS, found, {})
    return found


def _others(series: dict[tuple, pd.DataFrame], key: tuple, change: ChangePoint) -> Others:
    """What other models on the same device did when this series took its step.

    Another precision is no other model: whatever slowed the model down slowed it, too.
    """
    facts = dict(zip(SERIES, key, strict=True))
    model = series[key]["model"][0]
    others = (
        (rows["place"].to_numpy(), rows["median_ns"].to_numpy(dtype=float))
        for their_key, rows in series.items()
        if (theirs := dict(zip(SERIES, their_key, strict=True)))["category"] == "latency"
        and rows["model"][0] != model
        and all(theirs[name] == facts[name] for name in DEVICE)
    )
    return others_at_step(series[key]["place"][change.index - 1], change.ratio, others)


def no_slow_down_text(
    warehouse: Warehouse, variants: Collection[str] | None = None, platform: str | None = None
) -> str:
    """What can be said about these variants on this platform, or about all, if nothing was found."""
    chosen = None if variants is None else sorted(variants)
    work = work_of(warehouse, variants, platform)
    told = int((work.groupby(_WORK_SERIES, dropna=False).size() > 1).sum())
    counts = [
        int(rows["median_ns"].notna().sum())
        for key, rows in series_of(warehouse).items()
        if (variants is None or key[SERIES.index("variant")] in variants)
        and platform in (None, key[SERIES.index("platform")])
    ]
    said = [what_could_be_found(counts, chosen, platform)] if counts or not told else []
    if told:
        said.append(NO_MORE_WORK.say(told=told, variants=chosen, platform=platform))
    return " ".join(said)


def what_could_be_found(
    counts: Sequence[int], variants: Sequence[str] | None = None, platform: str | None = None
) -> str:
    """What "no slow-down was found" rests on, by the sessions of each series: short ones show nothing."""
    these = {"variants": variants, "platform": platform}
    short = sum(count < LEAST_SESSIONS for count in counts)
    if short == len(counts):
        longest = f"the longest of {len(counts)} series has {max(counts)}" if counts else "there are none"
        return TOO_FEW.say(**these, longest=longest)
    huge_only = sum(LEAST_SESSIONS <= count < ENOUGH_SESSIONS for count in counts)
    only_huge = f"; in {huge_only} of them only a step to {HUGE_RATIO:g} times or more could have been"
    untold = f"; {short} more have too few sessions to tell"
    return NONE_FOUND.say(
        **these,
        told=len(counts) - short,
        huge_only=huge_only,
        short=short,
        only_huge=only_huge if huge_only else "",
        untold=(untold if short else "") + (f" ({_NEEDED})" if huge_only or short else ""),
    )


def acknowledged_runs(path: Path) -> set[str]:
    """The run ids that a person listed, one per line; text after a # is a comment."""
    if not path.is_file():
        return set()
    try:
        # Some editors begin a file with a mark of its encoding.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Sme2Error(f"{path} is not text in UTF-8: {error}.", "Save it as UTF-8.") from error
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return {line for line in lines if line}
