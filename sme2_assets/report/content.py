"""What a report of a model on a platform says: the answer first, then all that it rests on.

Belongs here: which rows of the warehouse are shown, in which order, in which words. Tables and pictures are
made by their own modules; nothing here knows about Markdown or HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.analysis.statistics import MIN_AA_SESSIONS, threshold_of
from sme2_assets.errors import WarehouseError
from sme2_assets.evidence.digits import interval_beside
from sme2_assets.report import claims
from sme2_assets.report.advice import advice_section
from sme2_assets.report.answer import session_answer
from sme2_assets.report.document import (
    Block,
    Commands,
    Document,
    Grid,
    Section,
    Text,
)
from sme2_assets.report.explain import Explanation, explain
from sme2_assets.report.insights import headroom_table, insight_sections, missed_section, module_table
from sme2_assets.report.kernels import evidence_text, kernel_table, unit_table
from sme2_assets.report.models import arms_table, delegation_cost_table, numerics_table
from sme2_assets.report.numerics import counted, numerics_text
from sme2_assets.report.operators import operators_of_arm, operators_of_pair
from sme2_assets.report.pictures.graph import graph_pictures, tensors_of
from sme2_assets.report.pictures.modules import module_pictures
from sme2_assets.report.pictures.rounds import round_pictures, rounds_of, speedup_pictures
from sme2_assets.report.pictures.work import (
    category_pictures,
    inference_of,
    roofline_pictures,
    timeline_pictures,
    waterfall_pictures,
)
from sme2_assets.report.sizes import sizes_section
from sme2_assets.report.tables import (
    TextTable,
    arm_text,
    categories_of_pair,
    category_table,
    confidence_text,
    device_cell,
    environment_table,
    fidelity_note,
    latency_table,
    noise_table,
    placebo_text,
    provenance_table,
    setting_text,
    speedup_text,
)
from sme2_assets.report.unit_use import operators_not_known, unit_counts, unit_sentence
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.blind import blind_rates_text
from sme2_assets.warehouse.comparisons import aa_sessions_like, device_noise_floor
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view, runs_of_session

# How many A/A sessions of a device are shown; the view aa_sessions has them all.
NOISE_SHOWN = 10
# How many values in which the arms are compared are shown; the table arms_numerics has them all.
MOST_VALUES = 10


@dataclass
class _Subject:
    """What a report is about: the runs of one session, the arm with SME2 off first."""

    warehouse: Warehouse
    runs: list[dict[str, Any]]
    # Rows of the table comparisons; empty for one arm alone.
    compared: pd.DataFrame
    explanation: Explanation

    @property
    def run_ids(self) -> list[str]:
        return [run["run_id"] for run in self.runs]

    @property
    def timed(self) -> bool:
        return self.runs[0]["fidelity"] != "emulated"

    @property
    def reference(self) -> bool:
        return self.runs[0]["fidelity"] == "reference"

    @property
    def pair(self) -> bool:
        return len(self.runs) == 2

    @property
    def name(self) -> str:
        """What the page is called, with every setting that is not the default: other settings have pages too.

        A time is never shown without its device.
        """
        run = self.runs[0]
        device = run["device"] if self.timed else ""
        threads = "" if run["threads"] == 1 else counted(run["threads"], "thread")
        parts = (f"{run['variant']} on {run['platform']}", device, threads, setting_text(run))
        return ", ".join(filter(None, parts))

    @property
    def model(self) -> dict[Any, Any]:
        """The comparison of the whole model."""
        return self.compared[self.compared["level"] == "model"].iloc[0].to_dict()

    @cached_property
    def usage(self) -> dict[str, pd.DataFrame]:
        """Rows of `kernel_usage` of each arm."""
        return {run["sme2"]: rows_of_view(self.warehouse, "kernel_usage", run["run_id"]) for run in self.runs}

    @cached_property
    def unit(self) -> dict[str, Any]:
        """Rows of `unit_use` by run."""
        return unit_counts(self.warehouse, self.run_ids)

    def rows(self, view: str) -> pd.DataFrame:
        """The rows of a view that has rows for each run, of all arms."""
        return pd.concat([rows_of_view(self.warehouse, view, run_id) for run_id in self.run_ids])


def session_document(warehouse: Warehouse, session_id: str) -> Document:
    """The report of a session: the comparison of its arms, or the one arm that was measured."""
    runs = runs_of_session(warehouse, session_id)
    if len(runs) == 1:
        return _baseline_document(warehouse, runs[0])
    rows = comparison_of_session(warehouse, session_id)
    if rows.empty:
        raise WarehouseError(
            f"The arms of session {session_id} have not been compared.",
            "Materialise sme2_comparison for it, or run `sme2 warehouse sync`.",
        )
    subject = _Subject(warehouse, runs, rows, explain(warehouse, session_id))
    return _document(subject, f"{subject.name}: SME2 on against off")


def _baseline_document(warehouse: Warehouse, run: dict[str, Any]) -> Document:
    """One arm alone: where the time goes, and no comparison."""
    explanation = explain(warehouse, run["session_id"], run["sme2"])
    subject = _Subject(warehouse, [run], pd.DataFrame(), explanation)
    title = f"{subject.name}: {arm_text(run)}" + ("" if subject.reference else " alone")
    return _document(subject, title)


def _document(subject: _Subject, title: str) -> Document:
    """The answer, the picture, the operators; then the evidence; then where it comes from, folded."""
    answer = session_answer(
        subject.warehouse, subject.explanation, subject.compared if subject.pair else None
    )
    run = subject.runs[0]
    sections = [
        _categories(subject),
        _operators(subject),
        _evidence(subject),
        *([] if subject.reference else [missed_section(subject.explanation)]),
        *insight_sections(subject.explanation),
        *_latency(subject),
        *_kernels(subject),
        _modules(subject),
        *sizes_section(subject.warehouse, run),
        *([] if subject.reference else advice_section(subject.warehouse, run["variant"], run["pte_sha256"])),
        *_delegation(subject),
        _numerics(subject),
        _noise(subject),
        _measured(subject),
        _reproduction(subject),
    ]
    return Document(title, answer, sections, stamp=str(run["session_id"]))


def _evidence(subject: _Subject) -> Section:
    """What the answer rests on, a line each."""
    facts = [("fidelity", subject.runs[0]["fidelity"]), ("device", device_text(subject.runs[0]))]
    if subject.pair and subject.timed:
        facts += _statistics(subject.model)
    if not subject.reference or subject.pair:
        facts += [
            ("on the SME unit", _on_unit(subject)),
            ("evidence", evidence_text(subject.rows("operator_facts"))),
        ]
    facts.append(("numerics", numerics_text(subject.runs)))
    if subject.pair and subject.timed and (rates := blind_rates_text(subject.warehouse, subject.runs[0])):
        facts.append(("blind trials on this device", rates))
    return Section("What it rests on", [Grid(TextTable.of(["", ""], facts))])


def _statistics(model: dict[Any, Any]) -> list[tuple[str, str]]:
    """The numbers of a pair, where there are any."""
    session_id, low, high = (model[name] for name in ("session_id", "speedup_low", "speedup_high"))
    told = []
    if pd.isna(low) and not pd.isna(model["speedup"]):
        # A ratio without an interval shows nothing yet: it belongs here, not in the answer.
        told.append(("ratio so far (off / on)", speedup_text(model)))
    if not pd.isna(model["n"]):
        told.append(("paired rounds (n)", claims.ROUNDS.say(session_id=session_id, n=int(model["n"]))))
    if not pd.isna(low):
        ends = {"low": low, "high": high, "shown": interval_beside(low, high, 1, 3)}
        told.append(("95 % interval", claims.INTERVAL.say(session_id=session_id, **ends)))
    if not pd.isna(p := model["p_value"]):
        told.append(("p, exact signed-rank test", claims.P_VALUE.say(session_id=session_id, p=p)))
    if not pd.isna(effect := model["minimal_detectable_effect"]):
        detectable = claims.DETECTABLE.say(session_id=session_id, effect=effect)
        told.append(("these rounds would have shown", detectable))
    if placebo := placebo_text(model):
        told.append(("placebo", placebo))
    if confidence := confidence_text(model):
        told.append(("confidence", confidence))
    return told


def _on_unit(subject: _Subject) -> str:
    """How much is on the SME unit, arm by arm."""
    not_known = operators_not_known(subject.warehouse, subject.run_ids)
    said = {it: unit_sentence(it, subject.unit.get(it), not_known[it]) for it in subject.run_ids}
    return "; ".join(f"{arm_text(run)}: {said[run['run_id']]}" for run in reversed(subject.runs))


def _measured(subject: _Subject) -> Section:
    run = subject.runs[0]
    where = run["emulator"] or " ".join(
        str(part) for part in (run["device_model"], run["soc"], run["cpu"]) if part and not pd.isna(part)
    )
    note = fidelity_note(run)
    blocks: list[Block] = [Text(note, note=True)] if note else []
    if not pd.isna(run["paths"]) and run["paths"] > 1:
        several = claims.SEVERAL_PATHS.say(run_id=run["run_id"], paths=int(run["paths"]))
        blocks.append(Text(several, note=True))
    blocks += [
        Text(
            claims.WHAT.say(
                run_id=run["run_id"],
                variant=run["variant"],
                where=f"{where}, {device_cell(run)}, {run['os']}",
                threads=counted(run["threads"], "thread"),
                when=f"{run['started_at']:%Y-%m-%d %H:%M %Z}",
                rounds=counted(run["rounds"], "round"),
                length=_length(run, "iterations", "timed_s", "timed inference"),
            )
        ),
        Grid(provenance_table(pd.DataFrame(subject.runs))),
    ]
    return Section("What was measured", blocks, folded=True)


def _latency(subject: _Subject) -> list[Section]:
    """The section on latency; none for emulated runs, whose times are not shown."""
    if not subject.timed:
        return []
    pair = subject.model if len(subject.runs) == 2 else None
    return [
        Section(
            "Latency",
            [
                *_not_comparable(subject),
                Grid(latency_table(subject.rows("latency_summary"))),
                *round_pictures(rounds_of(subject.warehouse, subject.run_ids), pair),
            ],
        )
    ]


def _not_comparable(subject: _Subject) -> list[Block]:
    """A warning if two arms are shown side by side whose times do not compare."""
    if len(subject.runs) < 2 or subject.model["verdict"] != "not comparable":
        return []
    said = {name: subject.model[name] for name in ("session_id", "reason")}
    return [Text(claims.DO_NOT_COMPARE.say(**said), note=True)]


def _categories(subject: _Subject) -> Section:
    categories = subject.rows("category_summary")
    both = len(subject.runs) == 2
    blocks: list[Block] = [
        *(_not_comparable(subject) if subject.timed else []),
        *category_pictures(categories),
        Grid(categories_of_pair(subject.compared, categories) if both else category_table(categories)),
    ]
    if both:
        blocks += speedup_pictures(subject.compared, _threshold(subject.model))
    if subject.timed:
        bounds = "" if subject.reference else ", and the most that could be gained if it took no time"
        blocks += [Text(f"What each part takes{bounds}:"), Grid(headroom_table(subject.explanation))]
    return Section("Categories", blocks)


def _threshold(model: dict[Any, Any]) -> float:
    floor = model["noise_floor"]
    return threshold_of(None if pd.isna(floor) else float(floor))


def _operators(subject: _Subject) -> Section:
    usage = subject.usage
    timeline = timeline_pictures([inference_of(subject.warehouse, run_id) for run_id in subject.run_ids])
    if len(usage) == 2:
        paired = (
            "The arms are paired by the order of operators in each delegate: "
            "a different kernel often has a different name."
        )
        table = operators_of_pair(subject.explanation, subject.compared, usage)
        drawn = waterfall_pictures(subject.compared)
        return Section("Operators", [*drawn, Text(paired), Grid(table, long=True), *timeline])
    [rows] = usage.values()
    return Section("Operators", [Grid(operators_of_arm(subject.explanation, rows), long=True), *timeline])


def _kernels(subject: _Subject) -> list[Section]:
    """What ran in the arm that the insights are about; no section where nothing was sampled or counted."""
    run = subject.explanation.subject.run
    usage = subject.usage[run["sme2"]]
    if usage.empty:
        return []
    units = unit_table(usage)
    blocks: list[Block] = [Grid(units)] if units.rows else []
    name = "Kernels" if subject.reference else f"Kernels with SME2 {run['sme2']}"
    return [Section(name, [*blocks, Grid(kernel_table(usage), long=True)])]


def _modules(subject: _Subject) -> Section:
    explanation = subject.explanation
    run = explanation.subject.run
    run_id = run["run_id"]
    measured = (run["roof_fp32_gflops"], run["roof_read_gb_s"])
    blocks: list[Block] = [
        *module_pictures(explanation.modules, explanation.subject.bottlenecks),
        *graph_pictures(explanation.subject.bottlenecks, tensors_of(subject.warehouse, run_id)),
        Grid(module_table(explanation.modules)),
        *roofline_pictures(
            pd.concat([arm.bottlenecks for arm in explanation.arms]),
            None if pd.isna(measured[0]) else measured,
        ),
    ]
    return Section("Modules", blocks)


def _delegation(subject: _Subject) -> list[Section]:
    rows = subject.warehouse.query(
        "SELECT * FROM delegation_report WHERE run_id = ? "
        "ORDER BY delegated, share DESC, count DESC, operator, source",
        [subject.explanation.subject.run["run_id"]],
    )
    if rows.empty:
        return []
    table = delegation_cost_table(rows)
    return [Section("Delegation", [Grid(table if subject.timed else table.without("mean ms", "share"))])]


def _numerics(subject: _Subject) -> Section:
    """How close the outputs are to the eager model's, and those of the arms to each other."""
    rows = subject.warehouse.query(
        "SELECT sme2, fidelity, numerics.* FROM numerics JOIN runs USING (run_id) "
        "WHERE list_contains(?, run_id) ORDER BY sme2, output",
        [subject.run_ids],
    )
    shown: list[Block] = [Text(f"{numerics_text(subject.runs)}.")]
    if not rows.empty:
        shown.append(Grid(numerics_table(rows)))
    arms = subject.warehouse.query(
        "SELECT * FROM arms_numerics WHERE run_id = ? ORDER BY of_bound DESC, name LIMIT ?",
        [subject.run_ids[-1], MOST_VALUES],
    )
    if not arms.empty:
        shown.append(Text("The values in which the arms are nearest to their bound:"))
        shown.append(Grid(arms_table(arms)))
    return Section("Numerics", shown)


def _noise(subject: _Subject) -> Section:
    """What may have disturbed the measurement, and how much identical arms differ."""
    if not subject.timed:
        return Section("Noise", [Text("Emulated times are not shown, so there is no noise to show.")])
    blocks: list[Block] = [] if subject.reference else [Text(_floor_text(subject))]
    sessions = aa_sessions_like(subject.warehouse, subject.runs[0]).head(NOISE_SHOWN)
    if not sessions.empty:
        blocks.append(Grid(noise_table(sessions)))
    if not blind_rates_text(subject.warehouse, subject.runs[0]):
        blocks.append(Text(claims.NO_TRIALS.say(run_id=subject.runs[0]["run_id"])))
    blocks.append(Text(_flags_text(subject.runs)))
    # Both arms of a round meet the same machine.
    environment = subject.warehouse.query(
        "SELECT * FROM environment WHERE run_id = ? ORDER BY round, moment DESC", [subject.runs[0]["run_id"]]
    )
    if not environment.empty:
        blocks.append(Grid(environment_table(environment)))
    return Section("Noise", blocks)


def _floor_text(subject: _Subject) -> str:
    run = subject.runs[0]
    pair = subject.model if len(subject.runs) == 2 else None
    floor = device_noise_floor(subject.warehouse, run) if pair is None else pair["aa_noise_floor"]
    if floor is None or pd.isna(floor):
        floor = None
        said = claims.FLOOR_UNKNOWN.say(
            run_id=run["run_id"], sessions=MIN_AA_SESSIONS, variant=run["variant"]
        )
    else:
        said = claims.FLOOR.say(run_id=run["run_id"], floor=floor)
    if pair is not None and (placebo := placebo_text(pair)):
        said += f" {placebo}."
    threshold = threshold_of(floor) if pair is None else _threshold(pair)
    return f"{said} {claims.THRESHOLD.say(session_id=run['session_id'], share=threshold - 1)}"


def _flags_text(runs: Sequence[dict[Any, Any]]) -> str:
    said = []
    for run in runs:
        quiet = _quiet_text(run["flags"])
        steady = "of fixed length" if pd.isna(run["steady"]) else "steady" if run["steady"] else "NOT steady"
        said.append(
            claims.CIRCUMSTANCES.say(
                run_id=run["run_id"],
                arm=arm_text(run),
                quiet=quiet,
                steady=steady,
                dropped=int(run["samples_dropped"]),
            )
        )
    return " ".join(said)


def _quiet_text(flags: Any) -> str:
    if flags is None or flags is pd.NA:
        return "whether the machine was quiet is not known"
    return "; ".join(map(str, flags)) or "the machine was quiet"


def _reproduction(subject: _Subject) -> Section:
    """The commands that do this again, with the options that make it the same."""
    run = subject.runs[0]
    variant, platform = run["variant"], run["platform"]
    arm = "both" if len(subject.runs) == 2 else run["sme2"]
    options = {
        "--platform": platform,
        "--sme2": arm,
        "--threads": run["threads"],
        "--rounds": run["rounds"],
        # Without a time it was exactly this many; otherwise the default says how many and for how long.
        "--runs": None if (run["timed_s"] or 0) > 0 else run["iterations"],
        "--warmup": None if (run["warmup_s"] or 0) > 0 else run["warmup"],
        "--qos" if run["platform"] == "mac" else "--cpus": run["cpus"],
        "--power": run["power_mode"],
    }
    words = ["sme2", "profile", variant]
    for option, value in options.items():
        if value is not None and not pd.isna(value) and value != "":
            words += [option, str(value)]
    lines = [shlex.join(words), shlex.join(["sme2", "report", variant, "--platform", platform])]
    if len(subject.runs) == 2:
        lines.append(shlex.join(["sme2", "compare", *subject.run_ids]))
    lines.append(shlex.join(["sme2", "explain", variant, "--platform", platform]))
    said = claims.MADE_WITH.say(
        run_id=run["run_id"],
        executorch=run["executorch_version"],
        compiler=run["compiler"],
        rounds=counted(run["rounds"], "round"),
        warmup=_length(run, "warmup", "warmup_s", "warm-up inference"),
        timed=_length(run, "iterations", "timed_s", "timed inference"),
        seed=run["seed"],
    )
    return Section("Do it again", [Text(said), Commands(tuple(lines))], folded=True)


def _length(run: dict[Any, Any], count: str, seconds: str, thing: str) -> str:
    """How long a process was at least, in inferences and in seconds."""
    if pd.isna(run[seconds]) or run[seconds] == 0:
        return counted(run[count], thing)
    return f"at least {counted(run[count], thing)} and {run[seconds]:g} s"
