"""The record of a night and how it reads: as JSON, as Markdown, as a message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from sme2_assets.analysis.joint_steps import Others
from sme2_assets.heartbeat import duration_text
from sme2_assets.report import claims
from sme2_assets.report.tables import TextTable, arm_text, setting_text, work_step_text
from sme2_assets.store import Store, write_json, write_text_atomically
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.history import DEVICE, SERIES, WORK


@dataclass
class PairResult:
    """One model variant on one platform. Emulated pairs have no times."""

    variant: str
    platform: str
    states: list[str]
    status: str
    """measured, failed, or stopped."""
    attempts: int
    seconds: float
    session_id: str | None = None
    verdict: str | None = None
    """None if one state was measured alone."""
    reason: str | None = None
    speedup: str | None = None
    """With its interval and n."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    """Median per SME2 state, from the pass without tracer."""
    failure: str | None = None
    """What the last failed attempt said, also when a later one succeeded."""
    remedy: str | None = None
    device: str | None = None
    """What the night calls it, if it chose one."""

    @property
    def name(self) -> str:
        return f"{self.variant} on {self.place}"

    @property
    def place(self) -> str:
        return f"{self.platform} ({self.device})" if self.device else self.platform

    @property
    def failure_text(self) -> str:
        recovered = f" (measured at attempt {self.attempts})" if self.status == "measured" else ""
        return f"{self.name}{recovered}: {self.failure} What to do: {self.remedy or 'See the run in the UI.'}"


@dataclass
class NightSummary:
    """The result of a night."""

    night: str
    started_at: str
    finished_at: str
    seconds: float
    machine: str
    pairs: list[PairResult]
    regressions: list[str]
    """Those not acknowledged, as the warehouse showed them at the end of the night."""
    notes: list[str]
    """What was left out and why; earlier nights that were missed."""
    problems: list[str]
    """What failed besides the pairs: the noise of the machine, the search for slow-downs."""

    @property
    def status(self) -> str:
        """finished, or killed when somebody stopped some of its runs."""
        return "killed" if self.having("stopped") else "finished"

    @property
    def ok(self) -> bool:
        """Every pair measured. Says nothing about regressions."""
        return len(self.having("measured")) == len(self.pairs) and not self.problems

    def having(self, status: str) -> list[PairResult]:
        return [pair for pair in self.pairs if pair.status == status]

    @property
    def headline(self) -> str:
        counts = [f"{len(self.having('measured'))} of {len(self.pairs)} pairs measured"]
        counts += [f"{len(of)} {word}" for word in ("failed", "stopped") if (of := self.having(word))]
        return (
            f"Night {self.night} on {self.machine}: {self.status} after {duration_text(self.seconds)}, "
            + (", ".join(counts))
        )

    def write(self, folder: Path) -> None:
        write_text_atomically(folder / f"{self.night}.md", self.markdown())
        write_json(folder / f"{self.night}.json", {**asdict(self), "status": self.status, "ok": self.ok})

    def message(self) -> str:
        """The night in a few lines, for a chat."""
        lines = [self.headline]
        lines += [f"- failed: {pair.failure_text}" for pair in self.having("failed")]
        lines += [
            f"- {pair.verdict}: {pair.name}, {pair.speedup}"
            for pair in self.having("measured")
            if pair.verdict in ("faster", "slower")
        ]
        lines += [f"- regression: {regression}" for regression in self.regressions]
        lines += [f"- {note}" for note in [*self.problems, *self.notes]]
        return "\n".join([*lines, f"Summary: nightly/{self.night}.md in the data folder"])

    def markdown(self) -> str:
        headings = ["model", "platform", "SME2", "status", "verdict", "speedup", "median ms", "attempts", "s"]
        rows = [
            [
                pair.variant,
                pair.place,
                ", ".join(pair.states),
                pair.status,
                pair.verdict,
                pair.speedup,
                ", ".join(f"{sme2} {value:.3f}" for sme2, value in pair.latency_ms.items()) or None,
                pair.attempts,
                f"{pair.seconds:.1f}",
            ]
            for pair in self.pairs
        ]
        sections = {
            "Failures": [*(pair.failure_text for pair in self.pairs if pair.failure), *self.problems],
            "Why": [f"{pair.name}: {pair.reason}" for pair in self.pairs if pair.reason],
            "Regressions": self.regressions,
            "Notes": self.notes,
        }
        parts = [f"# {self.headline}", f"{self.started_at} to {self.finished_at}"]
        parts += [TextTable.of(headings, rows).markdown()]
        parts += [_section(title, items) for title, items in sections.items() if items]
        return "\n\n".join(part.rstrip() for part in parts) + "\n"


def night_folder(store: Store) -> Path:
    return store.root / "nightly"


def nights(store: Store) -> list[dict[str, Any]]:
    """The records of all nights, oldest first. Files that are not records are skipped."""
    found = []
    for path in night_folder(store).glob("*.json"):
        try:
            record = json.loads(path.read_text())
            found.append((record["started_at"], record))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return [record for _, record in sorted(found, key=lambda each: each[0])]


def open_regressions(warehouse: Warehouse) -> dict[str, str]:
    """Regressions that nobody has acknowledged, by what tells them apart, worst first.

    Those that several models of a device share are one.
    """
    if not warehouse.link.exists():
        return {}
    if warehouse.query("SELECT 1 FROM information_schema.tables WHERE table_name = 'regressions'").empty:
        return {}
    rows = warehouse.query(
        "SELECT regressions.*, coalesce(model, variant) AS model "
        "FROM regressions LEFT JOIN (SELECT run_id, model FROM runs) USING (run_id) "
        "WHERE NOT coalesce(acknowledged, false) ORDER BY ratio DESC"
    )
    rows = rows.astype(object).where(rows.notna(), None)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_dict("records"):
        joint = others_of(row).joint
        groups.setdefault(_identity(row, DEVICE) if joint else _identity(row), []).append(row)
    texts: dict[str, str] = {}
    for identity, group in groups.items():
        if len({row["model"] for row in group}) > 1:
            texts[identity] = _joint_text(group)
        else:
            texts |= {_identity(row): _regression_text(row) for row in group}
    return texts


def others_of(row: Mapping[Any, Any]) -> Others:
    """What a row of `regressions` says about other models; those of work and older ones say nothing."""
    counts: Iterator[Any] = (row.get(f"others_{name}") for name in ("watched", "slower"))
    return Others(*(int(count) if pd.notna(count) else 0 for count in counts))


def others_text(row: Mapping[Any, Any]) -> str:
    others = others_of(row)
    if not others.watched:
        return ""
    remedy = ": look at the device, or at what they share" if others.joint else ""
    count = others.slower or "none"
    return f"; {count} of {others.watched} series of other models on this device slowed down with it{remedy}"


def series_text(row: Mapping[Any, Any]) -> str:
    """All that tells the series of a row of `regressions` from others."""
    parts = (arm_text(row), f"threads {row['threads']}", setting_text(row), row["category"])
    return f"{row['variant']} on {row['platform']}, {row['device']}, {', '.join(filter(None, parts))}"


def _identity(row: dict[str, Any], names: Sequence[str] = SERIES) -> str:
    return "|".join([*(str(row[name] or "") for name in names), str(row["night"])[:10]])


def _regression_text(row: dict[str, Any]) -> str:
    if row["category"] == WORK:
        return claims.MORE_WORK.say(
            run_id=row["run_id"],
            series=series_text(row),
            step=work_step_text(row),
            night=str(row["night"])[:10],
        )
    chance = "" if row["p_value"] is None else f", p = {row['p_value']:.2g}"
    return claims.REGRESSION.say(
        run_id=row["run_id"],
        category=row["category"],
        series=series_text(row),
        share=row["ratio"] - 1,
        night=str(row["night"])[:10],
        before=row["before_ns"] / 1e6,
        after=row["after_ns"] / 1e6,
        chance=chance,
        others=others_text(row),
        watched=row.get("others_watched"),
        slower=row.get("others_slower"),
    )


def _joint_text(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    return claims.JOINT_REGRESSION.say(
        device=first["device"],
        platform=first["platform"],
        series=len(rows),
        models=len({row["model"] for row in rows}),
        night=str(first["night"])[:10],
        share=median(row["ratio"] for row in rows) - 1,
        run_ids=[row["run_id"] for row in rows],
    )


def _section(title: str, items: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {' '.join(item.split())}" for item in items)
