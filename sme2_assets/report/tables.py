"""The tables that UI, report and command line show: one definition, several renderings.

Emulated times are left out: they would be read as if they meant something. So is anything about SME2 if the
run is a reference, native on another instruction set, and any column of work where none was counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sme2_assets.analysis.factors import arm_names
from sme2_assets.analysis.unit import ON
from sme2_assets.evidence.digits import beside, interval_beside, ratio_text
from sme2_assets.report import claims

Record = Mapping[Hashable, Any]
# A command within a sentence, between backquotes.
COMMAND = re.compile("(?<!`)`([^`]+)`(?!`)")


def fidelity_note(run: Mapping[Any, Any]) -> str:
    """What readers must know about the numbers of a run; empty on hardware."""
    if run["fidelity"] == "emulated":
        return claims.EMULATED.say(run_id=run["run_id"])
    if run["fidelity"] == "reference":
        return claims.REFERENCE.say(run_id=run["run_id"], arch=run["arch"])
    return ""


def arm_text(run: Mapping[Any, Any]) -> str:
    """What an arm is called; a reference has no SME2 state."""
    return f"reference ({run['arch']})" if run["fidelity"] == "reference" else f"SME2 {run['sme2']}"


def device_cell(run: Mapping[Any, Any]) -> str:
    """Where a time is from, in one cell."""
    # Foreign traces have neither, and older rows have no architecture.
    parts = [run["device"], f"({run['arch']})" if run["arch"] and not pd.isna(run["arch"]) else None]
    return " ".join(str(part) for part in parts if part and not pd.isna(part))


def setting_text(run: Mapping[Any, Any]) -> str:
    """How the device was set for a series, and the method it ran; empty if nothing was chosen."""
    words = {"cpus": "CPUs", "power_mode": "power mode", "method": "method"}
    chosen = {name: run[name] for name in words if run[name] and not pd.isna(run[name])}
    return ", ".join(f"{words[name]} {value}" for name, value in chosen.items() if value != "forward")


@dataclass(frozen=True)
class TextTable:
    """A table of cells that are ready to be read."""

    header: list[str]
    rows: list[list[str]]

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> TextTable:
        return cls(list(header), [[_cell(value) for value in row] for row in rows])

    def without(self, *columns: str) -> TextTable:
        kept = [index for index, name in enumerate(self.header) if name not in columns]
        return TextTable([self.header[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    def markdown(self) -> str:
        lines = [
            "| " + " | ".join(map(markdown_text, self.header)) + " |",
            "|" + "|".join(" --- " for _ in self.header) + "|",
        ]
        escaped = ([markdown_text(cell) for cell in row] for row in self.rows)
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in escaped)]) + "\n"


def latency_table(summaries: pd.DataFrame) -> TextTable:
    """Rows of `latency_summary`."""
    table = TextTable.of(
        [
            "SME2",
            "device",
            "median ms",
            "5 % ms",
            "95 % ms",
            "rounds",
            "spread between rounds",
            "cost of the tracer",
            "load ms",
        ],
        [
            [
                row["sme2"],
                device_cell(row),
                _ms(row, "median_ns"),
                _ms(row, "p05_ns"),
                _ms(row, "p95_ns"),
                row["rounds"],
                _percent(row, "round_cv"),
                _tracer_cost(row),
                _ms(row, "load_ns"),
            ]
            for row in summaries.to_dict("records")
        ],
    )
    return of_sme2(table, summaries, "SME2")


def _tracer_cost(row: Record) -> str:
    """With its interval, where there is one: noise below zero would otherwise read like a gain."""
    cost, low, high = (_percent(row, f"tracer_overhead{end}") for end in ("", "_low", "_high"))
    return cost if "-" in (cost, low, high) else f"{cost} ({low} to {high})"


def operator_table(operators: pd.DataFrame) -> TextTable:
    """Rows of `operator_facts` of one run."""
    table = TextTable.of(
        ["delegate", "position", "operator", "category", "backend", "SME unit", "median ms", "share"],
        [
            [
                row["delegate"],
                row["position"],
                row["name"],
                row["category"] + ("" if row["known"] else " (unknown operator)"),
                row["backend"],
                unit_cell(row),
                _ms(row, "median_ns"),
                _percent(row, "share"),
            ]
            for row in operators.to_dict("records")
        ],
    )
    return of_sme2(real_times(table, operators, "median ms", "share"), operators, "SME unit")


def category_table(categories: pd.DataFrame) -> TextTable:
    """Rows of `category_summary` of one run."""
    shown = categories if is_counted(categories) else _meaningful(categories)
    table = TextTable.of(
        ["category", "operators", "on the SME unit", *WORK, "mean ms", "share"],
        [
            [
                row["category"],
                row["operators"],
                on_unit_cell(row),
                *work_cells(row),
                _ms(row, "mean_ns"),
                _percent(row, "share"),
            ]
            for row in shown.to_dict("records")
        ],
    )
    table = of_work(real_times(table, categories, "mean ms", "share"), categories, *WORK)
    return of_sme2(table, categories, "on the SME unit")


# Columns of the work of one arm, and of each arm of a pair.
WORK = ("instructions", "of the instructions")
_WORK_OF_ARM = "instructions, SME2 {}", "of them, SME2 {}"


def work_cells(row: Record) -> list[str | None]:
    """How many instructions an inference executes there, and which share of all."""
    if pd.isna(row["instructions"]):
        return [None, None]
    return [f"{int(row['instructions']):,}", f"{row['instructions_share']:.1%}"]


def categories_of_pair(compared: pd.DataFrame, categories: pd.DataFrame) -> TextTable:
    """What changes between the arms of a pair, by category: times, or under emulation what was counted.

    `compared` has the rows of `comparisons` of the session, `categories` those of `category_summary` of both.
    """
    if not is_counted(categories):
        return comparison_table(compared, "category")
    arms = {
        sme2: {row["category"]: row for row in categories[categories["sme2"] == sme2].to_dict("records")}
        for sme2 in ("off", "on")
    }
    nothing = {"operators": 0, "instructions": 0, "instructions_share": 0.0, "sme2_operators": 0}
    nothing["sme2_unknown_operators"] = 0
    rows = [
        (name, *(arms[sme2].get(name, nothing) for sme2 in arms))
        for name in dict.fromkeys(categories.sort_values("instructions", ascending=False)["category"])
    ]
    return TextTable.of(
        [
            *("category", "operators (SME2 on)", "on the SME unit, SME2 off", "on the SME unit, SME2 on"),
            *(heading.format(sme2) for sme2 in arms for heading in _WORK_OF_ARM),
        ],
        [
            [name, on["operators"], *map(on_unit_cell, (off, on)), *work_cells(off), *work_cells(on)]
            for name, off, on in rows
        ],
    )


def comparison_table(comparison: pd.DataFrame, level: str) -> TextTable:
    """Rows of `comparisons` of one session at a level: model, category or operator."""
    selected = comparison[comparison["level"] == level]
    rows = (_meaningful(selected) if level == "category" else selected).to_dict("records")
    arms = arm_names(comparison.iloc[0])
    units = tuple(f"on the SME unit, {arm}" for arm in arms)
    # Not "operators on", which reads as where an operator runs.
    operators = f"operators ({arms[1]})"
    a, b = (arm.removeprefix("SME2 ") for arm in arms)
    what: dict[str, Callable[[Record], Any]] = {
        "model": {"model": lambda row: row["variant"], operators: lambda row: row["operators"]},
        "category": {"category": lambda row: row["category"], operators: lambda row: row["operators"]},
        # The place tells operators of the same name apart.
        "operator": {
            "delegate": lambda row: row["delegate"],
            "position": lambda row: row["position"],
            f"operator ({a} -> {b})": names_in_both,
        },
    }[level]
    table = TextTable.of(
        [*what, *units, f"{a} ms", f"{b} ms", "speedup", "verdict"],
        [
            [
                *(value(row) for value in what.values()),
                row["sme2_operators_a"],
                on_unit_cell(row, "sme2_operators_b", "sme2_operators_unknown"),
                _ms(row, "a_ns"),
                _ms(row, "b_ns"),
                speedup_text(row),
                row["verdict"],
            ]
            for row in rows
        ],
    )
    table = of_sme2(table, comparison, *units)
    return real_times(table, comparison, f"{a} ms", f"{b} ms", "speedup", "verdict")


def unit_cell(row: Record) -> str | None:
    """Where an operator runs: `on`, `on (by name)`, `off` or `unknown`; None if it does not matter."""
    if pd.isna(row["on_sme_unit"]):
        return None
    by_name = row["on_sme_unit"] == ON and row["sme2_evidence"] == "name"
    return f"{row['on_sme_unit']} (by name)" if by_name else str(row["on_sme_unit"])


def on_unit_cell(
    row: Record, on: str = "sme2_operators", unknown: str = "sme2_unknown_operators"
) -> str | None:
    """How many operators are on the unit, and for how many it is unknown: `3` or `3, 2 unknown`."""
    if pd.isna(row[on]):
        return None
    return f"{int(row[on])}, {int(row[unknown])} unknown" if row[unknown] else f"{int(row[on])}"


def history_table(history: pd.DataFrame) -> TextTable:
    """Rows of `history` of one or more series."""
    table = TextTable.of(
        ["model", "platform", "device", "threads", "setting", "SME2", "started", "median ms", "run"],
        [
            [
                row["variant"],
                row["platform"],
                device_cell(row),
                row["threads"],
                setting_text(row) or None,
                _state(row),
                f"{row['started_at']:%Y-%m-%d %H:%M}",
                f"{row['median_ns'] / 1e6:.3f}",
                row["run_id"],
            ]
            for row in history.to_dict("records")
        ],
    )
    return _of_settings(table, history)


def noise_table(sessions: pd.DataFrame) -> TextTable:
    """Rows of `aa_sessions`."""
    table = TextTable.of(
        ["model", "platform", "device", "threads", "setting", "session", "identical arms gave", "verdict"],
        [
            [
                row["variant"],
                row["platform"],
                device_cell(row),
                row["threads"],
                setting_text(row) or None,
                row["session_id"],
                speedup_text(row),
                row["verdict"],
            ]
            for row in sessions.to_dict("records")
        ],
    )
    return _of_settings(table, sessions)


def environment_table(moments: pd.DataFrame) -> TextTable:
    """Rows of `environment` of one run: the machine around each round."""
    return TextTable.of(
        [
            *("round", "moment", "load", "CPU MHz", "governor", "hottest sensor, C"),
            *("other processes", "what was wrong"),
        ],
        [
            [
                row["round"] + 1,
                row["moment"],
                _decimals(row["load_1m"], 2),
                _decimals(row["cpu_mhz"], 0),
                row["governor"],
                _decimals(row["temperature_c"], 1),
                _listed(row["heavy_processes"]),
                _listed(row["flags"]) or "nothing",
            ]
            for row in moments.to_dict("records")
        ],
    )


PROVENANCE = {
    "run_id": "run",
    "session_id": "session",
    "started_at": "started",
    "device": "device",
    "arch": "architecture",
    "fidelity": "fidelity",
    "device_model": "device model",
    "soc": "system on chip",
    "cpu": "CPU",
    "cores": "cores",
    "os": "operating system",
    "kernel": "kernel",
    "emulator": "emulator",
    "sme_vector_bits": "SME vector bits",
    "cpu_features_masked": "CPU features hidden",
    "threads": "threads",
    "cpus": "CPUs",
    "power_mode": "power mode",
    "rounds": "rounds",
    "iterations": "inferences per process",
    "seed": "seed of the arms' order",
    "load_before": "machine load before",
    "executorch_version": "ExecuTorch",
    "compiler": "compiler",
    "runner_sha256": "runner hash",
    "runner_pair": "runner pair",
    "pte_sha256": "model file hash",
    "output_sha256": "output hash",
}


def provenance_table(runs: pd.DataFrame) -> TextTable:
    """Rows of `runs`, one column per arm; hashes by their first digits. What no arm has is left out."""
    records = runs.sort_values("sme2").to_dict("records")
    rows = [[label, *(_fact(record[column]) for record in records)] for column, label in PROVENANCE.items()]
    one_binary = (runs["runner_pair"] == runs["runner_sha256"]).all()
    return TextTable.of(
        ["", *(arm_text(record) for record in records)],
        [
            row
            for row in rows
            # One binary for both arms is its own pair.
            if any(cell is not None for cell in row[1:]) and not (row[0] == "runner pair" and one_binary)
        ],
    )


def work_history_table(work: pd.DataFrame) -> TextTable:
    """The counted work of one or more series, run by run."""
    table = TextTable.of(
        [
            *(
                "model",
                "platform",
                "device",
                "threads",
                "setting",
                "SME2",
                "started",
                "ExecuTorch",
                "program",
            ),
            *("instructions (work, not time)", "more", "MACs on the SME unit", "run"),
        ],
        [
            [
                row["variant"],
                row["platform"],
                device_cell(row),
                row["threads"],
                setting_text(row) or None,
                _state(row),
                f"{row['started_at']:%Y-%m-%d %H:%M}",
                row["executorch_version"],
                str(row["pte_sha256"])[:8],
                f"{row['instructions']:,}",
                None
                if pd.isna(row["before_instructions"])
                else f"{row['instructions'] - row['before_instructions']:+,}",
                None if pd.isna(row["macs_on_unit"]) else f"{row['macs_on_unit']:.1%}",
                row["run_id"],
            ]
            for row in work.to_dict("records")
        ],
    )
    return _of_settings(table, work)


def work_step_text(row: Mapping[Any, Any]) -> str:
    """What a row of `regressions` of counted work is a step from and to, and what else is new since then."""
    before, after = (f"{row[f'{side}_instructions']:,}" for side in ("before", "after"))
    shares = [row[f"{side}_macs_on_unit"] for side in ("before", "after")]
    on_unit = ""
    if not any(map(pd.isna, shares)):
        on_unit = "; {:.1%} to {:.1%} of the multiply-accumulates on the SME unit".format(*shares)
    return f"{before} to {after} instructions{on_unit}; new: {row['changed'] or 'nothing that is recorded'}"


def _level(row: Record, side: str) -> str:
    if pd.isna(row[f"{side}_ns"]):
        return f"{row[f'{side}_instructions']:,} instructions"
    return f"{row[f'{side}_ns'] / 1e6:.3f} ms"


def regression_table(found: pd.DataFrame) -> TextTable:
    """Rows of `regressions`."""
    table = TextTable.of(
        [
            "model",
            "platform",
            "device",
            "threads",
            "setting",
            "SME2",
            "series",
            "since",
            "before",
            "after",
            "ratio",
            "other models slower",
            "acknowledged",
        ],
        [
            [
                row["variant"],
                row["platform"],
                device_cell(row),
                row["threads"],
                setting_text(row) or None,
                _state(row),
                row["category"],
                f"{row['night']:%Y-%m-%d %H:%M}",
                _level(row, "before"),
                _level(row, "after"),
                f"{row['ratio']:.3f}",
                None
                if pd.isna(row["others_watched"])
                else f"{row['others_slower']} of {row['others_watched']}",
                "yes" if row["acknowledged"] else "no",
            ]
            for row in found.to_dict("records")
        ],
    )
    return _of_settings(table, found)


def speedup_text(row: Record) -> str:
    """`2.31x (2.28 to 2.35, n=6)`: a number shown to a person carries its interval and its n.

    Where whole microseconds leave no single number, the range they leave: `1.50x to 2.33x (n=6)`.
    """
    ratio, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if pd.isna(ratio):
        return "-" if pd.isna(low) else f"{beside(low, 1, 2)}x to {beside(high, 1, 2)}x (n={int(row['n'])})"
    if pd.isna(low):
        return f"{beside(ratio, 1, 2)}x (no interval, n={int(row['n'])})"
    return ratio_text(ratio, low, high, int(row["n"]))


def placebo_text(model: Record) -> str | None:
    """What the operators with the same kernel in both arms show; None where there is none."""
    if pd.isna(model["placebo_ratio"]):
        return None
    low, high = model["placebo_low"], model["placebo_high"]
    interval = "" if pd.isna(low) else f" ({interval_beside(low, high, 1, 3)})"
    operators = int(model["placebo_operators"])
    return claims.PLACEBO.say(
        session_id=model["session_id"],
        operators=operators,
        have="operator has" if operators == 1 else "operators have",
        ratio=f"{beside(model['placebo_ratio'], 1, 3)}{interval}",
    )


def verdict_and_reason(model: Record) -> tuple[str, str]:
    """What a pair shows, from its row of `comparisons` for the whole model."""
    session_id = model["session_id"]
    return (
        claims.VERDICT.say(session_id=session_id, verdict=model["verdict"]),
        claims.REASON.say(session_id=session_id, reason=model["reason"]),
    )


def confidence_text(model: Record) -> str | None:
    """How far the times of a pair can be relied on, and why; None where they do not compare."""
    if pd.isna(model["confidence"]):
        return None
    return claims.CONFIDENCE.say(
        session_id=model["session_id"], level=model["confidence"], why=model["confidence_reason"]
    )


def _meaningful(rows: pd.DataFrame) -> pd.DataFrame:
    """Without emulated overhead, of which nothing is known but a time."""
    return rows[(rows["fidelity"] != "emulated") | (rows["category"] != "Overhead")]


def real_times(table: TextTable, rows: pd.DataFrame, *columns: str) -> TextTable:
    """The table without its columns of times, where the rows are emulated."""
    return table.without(*columns) if (rows["fidelity"] == "emulated").any() else table


def is_counted(rows: pd.DataFrame) -> bool:
    """Whether the instructions of these rows were counted: those of emulated runs are."""
    return bool(rows["instructions"].notna().all()) and not rows.empty


def of_work(table: TextTable, rows: pd.DataFrame, *columns: str) -> TextTable:
    """The table without its columns of work, where none was counted."""
    return table if rows["instructions"].notna().any() else table.without(*columns)


def of_sme2(table: TextTable, rows: pd.DataFrame, *columns: str) -> TextTable:
    """The table without its columns about SME2, where the rows are a reference."""
    return table.without(*columns) if (rows["fidelity"] == "reference").any() else table


def _of_settings(table: TextTable, rows: pd.DataFrame) -> TextTable:
    """The table without its column of settings, where no row has any."""
    return table if any(map(setting_text, rows.to_dict("records"))) else table.without("setting")


def _state(row: Record) -> str | None:
    """The SME2 state; a reference has none."""
    return None if row["fidelity"] == "reference" else row["sme2"]


def names_in_both(row: Record) -> str:
    a, b = ("(absent)" if pd.isna(row[column]) else row[column] for column in ("a_name", "b_name"))
    return a if a == b else f"{a} -> {b}"


def _ms(row: Record, column: str) -> str:
    value = row[column]
    return "-" if row["fidelity"] == "emulated" or pd.isna(value) else f"{value / 1e6:.3f}"


def _percent(row: Record, column: str) -> str:
    value = row[column]
    return "-" if row["fidelity"] == "emulated" or pd.isna(value) else f"{value:.1%}"


def _decimals(value: Any, digits: int) -> str | None:
    return None if pd.isna(value) else f"{value:.{digits}f}"


def _listed(values: Any) -> str:
    return "" if values is None else ", ".join(map(str, values))


def _fact(value: Any) -> str | None:
    """A fact of a run in one cell, None for nothing."""
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ndarray":
        return _listed(value) or None
    if value is None or pd.isna(value) or value == "":
        return None
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M:%S %Z}"
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return value[:16]
    return f"{value:.1f}" if isinstance(value, float) and not value.is_integer() else _cell(value)


def _cell(value: Any) -> str:
    if value is None or pd.isna(value):
        return "-"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def markdown_text(text: str) -> str:
    """Text that stays text in Markdown, on one line: names and source lines come from models.

    Bars would end a cell, and an underscore before a word (`_ZN...`) would begin italics.
    """
    return _markdown_escaped(" ".join(text.split()))


def markdown_with_commands(text: str) -> str:
    """The same, with its commands as code, in which nothing is markup."""
    parts = COMMAND.split(" ".join(text.split()))
    return "".join(f"`{part}`" if at % 2 else _markdown_escaped(part) for at, part in enumerate(parts))


def _markdown_escaped(text: str) -> str:
    escaped = re.sub(r"([\\`*\[\]|])", r"\\\1", text)
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)
    return re.sub(r"&(?=#?\w+;)", "&amp;", escaped).replace("<", "&lt;").replace("~~", r"\~\~")


def markdown_paragraph(text: str) -> str:
    """The same for a paragraph of its own, which must not become a heading, list or rule either."""
    return re.sub(r"^(\d*)([#>+=~.)-])", r"\1\\\2", markdown_text(text))
