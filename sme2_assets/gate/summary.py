"""The gate's answer as Markdown: for a terminal, a job's page, or a comment on a pull request."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from sme2_assets.gate.baseline import BASELINE_FILE, ModelFacts, Times
from sme2_assets.gate.judge import Finding

# This line identifies the comment of an earlier run, to replace it.
MARK = "<!-- sme2 gate -->"
_MOST_ROWS = 25


def summary(
    findings: Mapping[str, Sequence[Finding]],
    before: Mapping[str, ModelFacts],
    after: Mapping[str, ModelFacts],
    path: Path = Path(BASELINE_FILE),
) -> str:
    """`findings` of each variant, losses first, as `judge` gives them; `path` is the baseline."""
    losing = [variant for variant, found in findings.items() if has_losses(found)]
    verdict = f"lost something in {', '.join(losing)}" if losing else "nothing was lost"
    lines = [MARK, f"## SME2 gate: {verdict}", "", *_overview(findings, before, after)]
    for variant, found in findings.items():
        lines += _table(variant, found)
    lines += ["", "Kernels, counts and outputs come from an emulated SME2 unit, whose times are unknown."]
    if losing:
        command = record_command(path, losing, [times for name in losing for times in before[name].times])
        lines.append(f"If this is intended, record it: `{command}`.")
    return "\n".join(lines) + "\n"


def record_command(path: Path, variants: Sequence[str], times: Sequence[Times] = ()) -> str:
    """What records these variants in this baseline, and their times again if all are from one place."""
    words = ["sme2", "gate", "record", *variants]
    if path != Path(BASELINE_FILE):
        words += ["--baseline", str(path)]
    places = {(each.platform, each.asked, each.threads) for each in times}
    if len(places) == 1:
        [(platform, device, threads)] = places
        words += ["--times", platform, *(["--device", device] if device else [])]
        words += ["--threads", str(threads)] if threads != 1 else []
    return shlex.join(words)


def has_losses(findings: Sequence[Finding]) -> bool:
    return any(finding.kind == "loss" for finding in findings)


def _overview(
    findings: Mapping[str, Sequence[Finding]],
    before: Mapping[str, ModelFacts],
    after: Mapping[str, ModelFacts],
) -> list[str]:
    rows = [
        "| model | | matrix operators on the SME unit | MACs on it "
        "| instructions (work, not time) | program |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for variant, found in findings.items():
        mark = "**lost**" if has_losses(found) else "ok"
        cells = [facts[variant].units() for facts in (before, after)]
        shares = [facts[variant].macs_text() for facts in (before, after)]
        work = [facts[variant].instructions_text() for facts in (before, after)]
        sizes = [f"{facts[variant].program_bytes:,} B" for facts in (before, after)]
        changes = " | ".join(map(_change, (cells, shares, work, sizes)))
        rows.append(f"| {variant} | {mark} | {changes} |")
    return rows


def _change(cells: Sequence[str]) -> str:
    return cells[0] if cells[0] == cells[1] else f"{cells[0]} → {cells[1]}"


def _table(variant: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    rows = [
        f"| {finding.kind} | {_cell(finding.where)} | {_cell(finding.what)} |"
        for finding in findings[:_MOST_ROWS]
    ]
    more = len(findings) - _MOST_ROWS
    cut = [f"| | | and {more} more: `sme2 gate check --json` |"] if more > 0 else []
    return ["", f"### {variant}", "", "| | where | what |", "| --- | --- | --- |", *rows, *cut]


def _cell(text: str) -> str:
    """Names come from outside, so none may end a cell or act as Markdown or HTML."""
    escaped = "".join(f"\\{char}" if char in r"\`*_[]<>|~#@!" else char for char in text)
    return " ".join(escaped.split())
