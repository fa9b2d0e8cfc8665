"""A data folder from Python: `import sme2_assets as sme2; lab = sme2.open()`.

Belongs here: what a notebook or another program may rely on. Tables are pandas frames, answers small frozen
results that a notebook shows as text. Everything is imported when it is used: the import itself loads neither
Dagster nor torch nor pandas. The functions behind it are those of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store, default_data_root, environment

if TYPE_CHECKING:
    import pandas as pd

    from sme2_assets.report.document import Answer
    from sme2_assets.report.explain import Explanation
    from sme2_assets.warehouse import Warehouse

Log = Callable[[str], None]


def open(path: str | Path | None = None) -> DataFolder:
    """The data folder at a path; by default the command line's: $SME2_DATA, or data/ of the checkout."""
    if path is not None and not Path(path).is_dir():
        raise Sme2Error(
            f"There is no folder {path}.",
            "Name a data folder: `sme2 --help` shows the one that the command line uses.",
        )
    return DataFolder((Path(path) if path is not None else default_data_root()).resolve())


@dataclass(frozen=True, eq=False, repr=False)
class _Result:
    """What every result is about: the newest session of a model on a platform and device."""

    variant: str
    platform: str
    device: str
    fidelity: str
    session_id: str

    @property
    def title(self) -> str:
        return f"{self.variant} on {self.platform}, {self.device}"

    def _repr_markdown_(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._repr_markdown_()


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(_Result):
    """SME2 on against off. Emulated pairs have no speedup: their times mean nothing, their kernels do.

    `unit` has a row for each arm: how many matrix operators are on the SME unit. `not_known` has for each run
    how many operators nobody knows: they may be matrix operators as well. `rows` have the columns of the view
    `sme2_comparison`. `work` are those of `work_comparison`, with off and on for a and b: instructions, never
    time; empty where they are not counted.
    """

    off_run_id: str
    on_run_id: str
    verdict: str
    reason: str
    speedup: float | None
    interval: tuple[float, float] | None
    rounds: int | None
    unit: pd.DataFrame
    not_known: dict[str, int]
    work: pd.DataFrame
    _compared: pd.DataFrame

    @property
    def rows(self) -> pd.DataFrame:
        from sme2_assets.warehouse.read import with_off_and_on

        return with_off_and_on(self._compared)

    @property
    def categories(self) -> pd.DataFrame:
        return self._level("category")

    @property
    def operators(self) -> pd.DataFrame:
        return self._level("operator")

    def _level(self, level: str) -> pd.DataFrame:
        return self.rows[self.rows["level"] == level].dropna(axis="columns", how="all").reset_index(drop=True)

    def _repr_markdown_(self) -> str:
        from sme2_assets.report.tables import comparison_table, markdown_text, speedup_text
        from sme2_assets.report.unit_use import unit_sentence

        model = self.rows[self.rows["level"] == "model"].iloc[0].to_dict()
        lines = [f"**{markdown_text(self.title)}: {self.verdict}.** {markdown_text(self.reason)}"]
        if self.fidelity == "hardware":
            lines.append(f"Speedup (off / on): {speedup_text(model)}.")
        if self.fidelity != "reference":
            counts = {row["run_id"]: row for row in self.unit.to_dict("records")}
            arms = (("on", self.on_run_id), ("off", self.off_run_id))
            said = [
                f"SME2 {sme2}: {unit_sentence(run_id, counts.get(run_id), self.not_known[run_id])}"
                for sme2, run_id in arms
            ]
            lines.append(f"On the SME unit, {'; '.join(said)}.")
        return "\n\n".join([*lines, comparison_table(self._compared, "category").markdown()])


@dataclass(frozen=True, eq=False, repr=False)
class Explained(_Result):
    """Why a model is as fast as it is, and what to fix next, the largest gain first.

    Frames: `findings`, `missed` (matrix operators off the SME unit, and why), `operators` by time, `modules`.
    """

    explanation: Explanation
    answer: Answer

    @property
    def findings(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame([insight.as_json() for insight in self.explanation.insights])

    @property
    def missed(self) -> pd.DataFrame:
        return self.explanation.subject.missed_sme2

    @property
    def operators(self) -> pd.DataFrame:
        return self.explanation.subject.bottlenecks

    @property
    def modules(self) -> pd.DataFrame:
        return self.explanation.modules

    def as_json(self) -> dict[str, Any]:
        from sme2_assets.report.insights import explanation_json

        return explanation_json(self.explanation, self.answer)

    def _repr_markdown_(self) -> str:
        from sme2_assets.report.insights import insight_sections, missed_section
        from sme2_assets.report.markdown import section_markdown
        from sme2_assets.report.tables import markdown_text

        sections = insight_sections(self.explanation)
        if self.fidelity != "reference":
            sections.append(missed_section(self.explanation))
        texts = [section_markdown(section, "###") for section in sections]
        said = f"**{markdown_text(self.answer.word)}.** {markdown_text(self.answer.sentence)}\n"
        return "\n".join([f"## {markdown_text(self.title)}\n", said, *texts])


@dataclass(frozen=True, eq=False, repr=False)
class Report(_Result):
    """A report that was written: the page, the Markdown next to it, and what it says first."""

    verdict: str
    sentence: str
    figure: str | None
    page: Path
    markdown_file: Path

    @property
    def markdown(self) -> str:
        return self.markdown_file.read_text(encoding="utf-8")

    def _repr_markdown_(self) -> str:
        from sme2_assets.report.tables import markdown_text

        figure = f" **{markdown_text(self.figure)}**" if self.figure else ""
        said = f"**{markdown_text(self.title)}: {self.verdict}.**{figure} {markdown_text(self.sentence)}"
        return f"{said}\n\n[{self.page.name}]({self.page.as_uri()})"


class DataFolder:
    """Everything that was measured in a data folder, and a way to measure more. Made by `open`."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)

    def __repr__(self) -> str:
        return f"sme2_assets.open({str(self.store.root)!r})"

    @cached_property
    def warehouse(self) -> Warehouse:
        from sme2_assets.warehouse import Warehouse

        return Warehouse(self.store.warehouse)

    def models(self, *, everything: bool = False) -> pd.DataFrame:
        """The models that can be profiled; `everything`: also from sources built only on request."""
        import pandas as pd

        from sme2_assets.models.registry import catalogue

        with self.chosen():
            found = catalogue(lambda source: everything or source.automatic)
        listed = [
            (spec.title, ", ".join(spec.precisions), spec.description, spec.source) for spec in found.specs
        ]
        return pd.DataFrame(listed, columns=["model", "precisions", "description", "source"])

    def targets(self) -> pd.DataFrame:
        """The platforms with SME2 on and off: which this machine offers, and what the others need."""
        import pandas as pd

        from sme2_assets.targets import availabilities

        with self.chosen():
            found = availabilities(self.store)
        rows = [(str(key), fidelity, it.ok, it.detail, it.remedy) for key, fidelity, it in found]
        return pd.DataFrame(rows, columns=["target", "fidelity", "available", "detail", "remedy"])

    def runs(self, model: str | None = None, platform: str | None = None) -> pd.DataFrame:
        """All runs, the newest first; `median_ns` is the latency, unknown where times mean nothing."""
        return self.warehouse.query(
            "SELECT run_id, variant, platform, sme2, device, arch, threads, fidelity, started_at, rounds, "
            "median_ns, session_id FROM runs LEFT JOIN "
            "(SELECT run_id, median_ns FROM latency_summary) USING (run_id) "
            "WHERE coalesce($model IN (variant, model), true) AND coalesce(platform = $platform, true) "
            "ORDER BY coalesce(sequence, 0) DESC, run_id",
            {"model": model, "platform": platform},
        )

    def timeline(self, run: str) -> pd.DataFrame:
        """Every operator of every traced inference of a run, in order; emulated ones have no times.

        The table itself has the emulator's times in columns of their own: `lab.sql("FROM timeline")`.
        """
        from sme2_assets.warehouse.read import run_of_id

        run_of_id(self.warehouse, run)
        return self.warehouse.query(
            "SELECT * EXCLUDE (emulated_ns) REPLACE (if(fidelity = 'emulated', NULL, start_ns) AS start_ns) "
            "FROM timeline WHERE run_id = ? "
            "ORDER BY pass, round, iteration, start_ns, delegate NULLS LAST, position",
            [run],
        )

    def sql(
        self, query: str, *, limit: int | None = None, timeout_s: float = 60.0, memory: str = "2GB"
    ) -> pd.DataFrame:
        """The rows of one query, at most `limit`. It can only read, and only the warehouse."""
        import pandas as pd

        from sme2_assets.warehouse.console import Limits, open_console

        with open_console(self.warehouse, Limits(timeout_s, memory)) as console:
            answer = console.ask(query, limit)
        frame = pd.DataFrame(answer.rows, columns=list(answer.columns))
        frame.attrs["more"] = answer.more
        return frame

    def compare(self, model: str, platform: str | None = None, device: str | None = None) -> Comparison:
        """The newest pair of a model on a platform: SME2 on against off, whatever ran alone since."""
        from sme2_assets.report.answer import word_and_reason
        from sme2_assets.report.unit_use import operators_not_known
        from sme2_assets.warehouse.comparisons import compare_arms
        from sme2_assets.warehouse.read import (
            comparison_of_session,
            newest_pair,
            with_off_and_on,
            work_of_session,
        )

        session = self._session(model, platform, device)
        session["session_id"] = newest_pair(self.warehouse, session) or session["session_id"]
        rows = comparison_of_session(self.warehouse, session["session_id"])
        if rows.empty:
            rows = compare_arms(self.warehouse, session["session_id"])
        row = rows[rows["level"] == "model"].iloc[0].to_dict()
        verdict, reason = word_and_reason(row)
        low, high = _known(row["speedup_low"]), _known(row["speedup_high"])
        unit = self.warehouse.query(
            "FROM unit_use WHERE run_id IN ($off, $on) ORDER BY sme2",
            {"off": row["a_run_id"], "on": row["b_run_id"]},
        )
        return Comparison(
            **_about(session),
            off_run_id=row["a_run_id"],
            on_run_id=row["b_run_id"],
            verdict=verdict,
            reason=reason,
            speedup=_known(row["speedup"]),
            interval=None if low is None or high is None else (low, high),
            rounds=None if _known(row["n"]) is None else int(row["n"]),
            unit=unit,
            not_known=operators_not_known(self.warehouse, [row["a_run_id"], row["b_run_id"]]),
            work=with_off_and_on(work_of_session(self.warehouse, session["session_id"])),
            _compared=rows,
        )

    def explain(self, model: str, platform: str | None = None, device: str | None = None) -> Explained:
        """Why a model is as fast as it is on a platform, and what to fix next."""
        from sme2_assets.report.answer import session_answer
        from sme2_assets.report.explain import explain

        session = self._session(model, platform, device)
        explanation = explain(self.warehouse, session["session_id"])
        answer = session_answer(self.warehouse, explanation)
        return Explained(**_about(session), explanation=explanation, answer=answer)

    def report(self, model: str, platform: str | None = None, device: str | None = None) -> Report:
        """Writes the report of a model on a platform."""
        from sme2_assets.report.files import write_session_report

        session = self._session(model, platform, device)
        document, files = write_session_report(self.store, self.warehouse, session["session_id"])
        answer = document.answer
        assert answer is not None
        by_ending = {path.suffix: path for path in files}
        return Report(
            **_about(session),
            verdict=answer.word,
            sentence=answer.sentence,
            figure=answer.figure,
            page=by_ending[".html"],
            markdown_file=by_ending[".md"],
        )

    def profile(
        self,
        model: str,
        *,
        platform: str = "auto",
        sme2: str = "both",
        device: str | None = None,
        log: Log = print,
        **settings: Any,
    ) -> pd.DataFrame:
        """Measures a model, as `sme2 profile` does, and gives its runs.

        `settings` are those of `sme2 profile`: threads, iterations, warmup, rounds, budget_s, cpus, runner,
        qos, power. What could not be measured is reported by `log`; if nothing could, that is an error.
        """
        from sme2_assets import launch
        from sme2_assets.defs.resources import Lab
        from sme2_assets.models.registry import variants_of
        from sme2_assets.profiling.requests import requests_asked_for
        from sme2_assets.targets import SME2_STATES

        states: Sequence[str] = SME2_STATES if sme2 == "both" else (sme2,)
        with self.chosen():
            variants = variants_of(model, log=log)
            wanted = requests_asked_for(self.store, variants, platform, tuple(states), device)
            for note in wanted.notes:
                log(f"note: {note}")
            lab = Lab(data_root=str(self.store.root))
            with launch.open_instance(self.store) as instance:
                done = launch.profile(lab, instance, wanted.requests, settings, log)
        for each in [*wanted.left_out, *done.left_out]:
            log(str(each))
        runs = self.runs()
        return runs[runs["run_id"].isin(done.run_ids)].reset_index(drop=True)

    def _session(self, model: str, platform: str | None, device: str | None) -> dict[str, Any]:
        """The one session that is meant, as one of its runs."""
        from sme2_assets.warehouse.read import measured_sessions
        from sme2_assets.warehouse.variants import measured_variants

        with self.chosen():
            variants = measured_variants(self.warehouse, model)
            found = measured_sessions(self.warehouse, model, variants, platform)
        matching = [run for run in found if device in (None, run["device"])]
        if len(matching) == 1:
            return matching[0]
        there = "; ".join(
            sorted({f"{run['variant']} on {run['platform']}, {run['device']}" for run in found})
        )
        if not matching:
            raise Sme2Error(f"{model} was not measured on the device {device!r}.", f"Measured: {there}.")
        if len({(run["variant"], run["platform"], run["device"]) for run in matching}) == 1:
            # The same device with other threads, CPUs or power: the newest is what people mean.
            return matching[0]
        raise Sme2Error(
            f"{model!r} means {len(matching)} results.",
            f"Name model, precision and platform, and the device if there are several. Measured: {there}.",
        )

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Names this data folder in the environment, where models are looked for, also by other processes."""
        with environment(SME2_DATA=str(self.store.root)):
            yield


def _about(session: dict[str, Any]) -> dict[str, str]:
    return {name: session[name] for name in ("variant", "platform", "device", "fidelity", "session_id")}


def _known(value: Any) -> float | None:
    import pandas as pd

    return None if pd.isna(value) else float(value)
