"""What must hold for evidence of any kind: hashes, nanoseconds, traces, strict JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.diagnostics.steps import FAILED, Checkup
from sme2_assets.errors import TraceError, printable
from sme2_assets.etdump import Events, read_etdump
from sme2_assets.store import sha256_of_file

AGAIN = "Measure again with `sme2 profile`."


def require(holds: bool, what: str, remedy: str | None = None) -> None:
    if not holds:
        raise TraceError(what, remedy)


def check_hashes(folder: Path, expected: dict[str, Any], remedy: str = AGAIN) -> str:
    require(bool(expected), "It lists no hash of any file.", remedy)
    missing = [name for name in expected if not (folder / name).is_file()]
    require(not missing, f"Missing: {', '.join(printable(name) for name in missing[:5])}.", remedy)
    changed = [name for name, sha256 in expected.items() if sha256_of_file(folder / name) != sha256]
    require(
        not changed,
        f"Not the files that were written: {', '.join(printable(name) for name in changed[:5])}.",
        remedy,
    )
    return f"{len(expected)} files, all as they were written"


def check_conservation(timeline: pd.DataFrame, inferences: pd.DataFrame) -> str:
    """Timeline rows of every traced inference add up to its Method::execute, to the nanosecond."""
    # Untraced warm-ups have negative iterations.
    traced = inferences[(inferences["pass"] == "etdump") & (inferences["iteration"] >= 0)]
    traced = traced.set_index(["round", "iteration"])
    summed = timeline.groupby(["round", "iteration"])["duration_ns"].sum()
    joined = traced.join(summed.rename("total_ns"), how="outer")
    wrong = joined[joined["total_ns"].ne(joined["execute_ns"]) | joined["total_ns"].isna()]
    require(wrong.empty, f"{len(wrong)} inferences do not add up.", "This is a defect: please report it.")
    known = joined["duration_ns"].notna()
    late = joined[known & (joined["execute_ns"] > joined["duration_ns"].where(known, joined["execute_ns"]))]
    require(late.empty, f"{len(late)} inferences took longer inside than outside.", AGAIN)
    return f"{len(joined)} inferences, every nanosecond in exactly one row"


def trace_steps(made: Checkup, path: Path) -> None:
    events: Events | None = None
    with made.step("trace") as step:
        events = read_etdump(path)
        inferences = len(execute_durations(events))
        require(inferences > 0, "It contains no inference.", "Run the model with the event tracer attached.")
        step.detail = f"{inferences} inferences, {len(events):,} events"
    if events is None or made.steps[-1].status == FAILED:
        return
    timeline = None
    with made.step("nanoseconds") as step:
        timeline = timeline_rows(events, 0)
        execute_ns = execute_durations(events)
        inferences = pd.DataFrame({"iteration": range(len(execute_ns)), "execute_ns": execute_ns})
        step.detail = check_conservation(
            timeline.assign(round=0), inferences.assign(round=0, duration_ns=None, **{"pass": "etdump"})
        )
    if timeline is None:
        return
    with made.step("operators") as step:
        operators = timeline[timeline["kind"] == "operator"]
        unknown = sorted(set(operators.loc[~operators["known"], "name"]))
        step.detail = f"{len(operators) // max(len(execute_ns), 1)} an inference"
        if unknown:
            step.note(f"Counted as Other, because their names are unknown: {', '.join(unknown[:10])}")


def strict_json(path: Path) -> dict[str, Any]:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(
            f"{path.name} is not a JSON document: {error}.", "Export or measure again."
        ) from error
    require(isinstance(document, dict), f"{path.name} is not a JSON object.", "Export or measure again.")
    return dict(document)
