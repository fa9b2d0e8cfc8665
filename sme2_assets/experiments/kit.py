"""The public kit's configurations as experiment files, with a note on everything that changes.

Belongs here: the keys of the kit's JSON files and what they mean here. Does not: anything about experiments
that did not come from the kit.

The kit has one runner binary per state of SME2, one process per experiment, and its warm-up in a process of
its own. Here both states are one binary with SME2 masked, measured interleaved in rounds of fresh
processes. So a pair of the kit's experiments becomes one entry, and its numbers keep their meaning where
they have one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.experiments.schema import Experiment, ExperimentError, Text, listed
from sme2_assets.models.registry import parse_variant
from sme2_assets.models.spec import BACKEND, PORTABLE
from sme2_assets.written.problems import Lines, Place, Problem, line_of, problems_of

# The kit's defaults.
DEFAULT_RUNS = 100
DEFAULT_WARMUP = 10
PASSES_OF_MODE = {"timing": ("latency", "etdump"), "xnntrace": ("latency", "etdump", "kernels")}
# Keys that only the kit's files have.
_TOP_KEYS = {"model", "output_root", "experiments", "analysis"}
_PLATFORMS = ("android", "mac")
_PLACEHOLDER = re.compile(r"REPLACE_WITH|<[a-z_]+>")
# The folders of the kit's builds with SME2 on. Those with it off say so.
_BUILDS_ON = re.compile(r"(mac-arm64|android-arm64-v9a)(-xnnlog|-xnntrace|-trace)?")
_OFF = re.compile(r"sme2?[-_]?(off|disabled)|(no|non|without)[-_]?sme|(?<![a-z])off(?![a-z])", re.IGNORECASE)
_ON = re.compile(r"sme2?[-_]?(on|enabled)(?![a-z])|with[-_]?sme|(?<![a-z])on(?![a-z])", re.IGNORECASE)
# `toy_cnn_xnnpack_fp16.pte`: how the kit names its exports; ExecuTorch's own examples write q8 for int8.
_EXPORT_NAME = re.compile(r"(?P<model>.+)_(?P<backend>xnnpack|portable)_(?P<precision>fp32|fp16|int8|q8)")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class KitExperiment(_Strict):
    name: Annotated[Text, Field(max_length=80)]
    runner_path: Text | None = None
    quiet_runner: Text | None = None
    mode: Literal["timing", "xnntrace"] = "timing"
    runs: Annotated[int, Field(ge=1, le=100000)] | None = None
    num_runs: Annotated[int, Field(ge=1, le=100000)] | None = None
    warmup: Annotated[int, Field(ge=0, le=100000)] | None = None
    threads: (
        Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), BeforeValidator(listed)] | None
    ) = None
    num_threads: (
        Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), BeforeValidator(listed)] | None
    ) = None
    extra_args: list[Text] = []
    cpu_affinity: Text | None = None


class KitArm(_Strict):
    experiment: Text
    threads: Annotated[int, Field(ge=1)] | None = None


class KitPair(_Strict):
    baseline: KitArm
    candidate: KitArm
    label: Text | None = None


class KitAnalysis(_Strict):
    compare_pairs: list[KitPair] = []


class KitConfig(_Strict):
    model: Text
    output_root: Text | None = None
    experiments: Annotated[list[KitExperiment], Field(min_length=1, max_length=200)]
    analysis: KitAnalysis = KitAnalysis()


_MODELS: dict[str, type[BaseModel]] = {
    "": KitConfig,
    "experiments": KitExperiment,
    "analysis": KitAnalysis,
    "compare_pairs": KitPair,
    "baseline": KitArm,
    "candidate": KitArm,
}


@dataclass(frozen=True)
class _Arm:
    """One of the kit's experiments, as understood here."""

    name: str
    place: Place
    platform: str
    sme2: str
    passes: tuple[str, ...]
    runs: int
    warmup: int
    threads: tuple[int, ...]
    cpus: str | None

    @property
    def says(self) -> str | None:
        """The platform that its name has in it."""
        return next((name for name in _PLATFORMS if name in self.name.lower()), None)

    @property
    def together(self) -> tuple[str, str | None]:
        """What arms that are measured together have in common."""
        return self.platform, self.cpus

    def is_of(self, entry: Mapping[str, Any]) -> bool:
        """Whether it is measured in this entry, if with its threads."""
        [platform] = entry["platforms"]
        return self.together == (platform["name"], platform.get("cpus"))


def is_kit(data: Mapping[str, Any]) -> bool:
    """Whether a document is one of the kit's: it has `experiments`, which ours lack, or two of its keys."""
    return "experiments" in data or len(_TOP_KEYS & set(data)) > 1


def translated(
    data: Mapping[str, Any], path: Path, lines: Lines, platform: str | None
) -> tuple[Experiment, list[str]]:
    """The experiment that a file of the kit means here, and notes on what changed."""
    name = path.name
    try:
        config = KitConfig.model_validate(data)
    except ValidationError as error:
        raise ExperimentError(name, problems_of(error, _MODELS, lines)) from None
    translation = _Translation(config, path, lines, platform)
    experiment = translation.experiment()
    if translation.problems:
        raise ExperimentError(name, translation.problems)
    try:
        return Experiment.model_validate(experiment), translation.notes
    except ValidationError as error:
        raise ExperimentError(name, problems_of(error, _MODELS, lines)) from None


class _Translation:
    """Collects notes and problems on the way."""

    def __init__(self, config: KitConfig, path: Path, lines: Lines, platform: str | None) -> None:
        self.config = config
        self.path = path
        self.lines = lines
        self.platform = platform
        self.notes: list[str] = []
        self.problems: list[Problem] = []

    def experiment(self) -> dict[str, Any]:
        model = self._model()
        arms = [
            arm
            for index, experiment in enumerate(self.config.experiments)
            if (arm := self._arm(experiment, ("experiments", index))) is not None
        ]
        names = [experiment.name for experiment in self.config.experiments]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._problem(("experiments",), f"two experiments have the name {name!r}.")
        if self.problems:
            return {}
        entries = self._entries(arms)
        document: dict[str, Any] = {"models": [model], "entries": entries}
        if comparisons := self._comparisons(arms, entries):
            document["comparisons"] = comparisons
        if self.config.output_root:
            document["output"] = self._output(self.config.output_root)
        self.notes += [
            "runner_path is not used: the platform's own runner is built here, one binary for both states, "
            "and SME2 is masked for off",
            "runs is the timed inferences of one process; processes are repeated in rounds, of which the "
            "kit has one",
            "warmup happens in the measured process; the kit's was in a separate process and warmed nothing",
        ]
        return document

    def _problem(self, place: Place, what: str, remedy: str | None = None) -> None:
        self.problems.append(Problem(place, what, remedy, line_of(place, self.lines)))

    def _model(self) -> str:
        """The .pte as an absolute path; if there is no such file, the model it is named after."""
        text = self.config.model
        if _PLACEHOLDER.search(text):
            self._problem(
                ("model",),
                f"{text!r} is the template's placeholder.",
                "Write the path of your .pte, or the name of a model (`sme2 models`).",
            )
            return text
        for folder in self._roots():
            if (folder / text).is_file():
                return str((folder / text).resolve())
        if named := _EXPORT_NAME.fullmatch(Path(text).stem):
            option = f"@{BACKEND}={PORTABLE}" if named["backend"] == PORTABLE else ""
            precision = named["precision"].replace("q8", "int8")
            variant = f"{named['model']}{option}-{precision}"
            try:
                parse_variant(variant)
            except ExportError:
                pass
            else:
                self.notes.append(
                    f"{text} does not exist; it is named like the kit's export of {named['model']} at "
                    f"{precision}, so {variant} is exported here and measured"
                )
                return variant
        if not text.endswith(".pte"):
            return text
        self._problem(
            ("model",),
            f"{text} does not exist, neither from {self.path.parent} upwards nor from the current folder.",
            "Export the model first, or write the name of a model of `sme2 models` instead.",
        )
        return text

    def _roots(self) -> Iterator[Path]:
        """Where the kit's relative paths may start: it is run from its checkout, above its configurations."""
        folder = self.path.resolve().parent
        yield from (folder, *folder.parents)
        yield Path.cwd()

    def _output(self, text: str) -> str:
        root = next((folder for folder in self._roots() if (folder / "model_profiling").is_dir()), Path.cwd())
        model = _EXPORT_NAME.sub(r"\g<model>", Path(self.config.model).stem)
        folder = root / text.replace("<model>", model)
        self.notes.append(
            f"output_root gets exports, reports and a summary: {folder}; the runs are in the data folder"
        )
        return str(folder)

    def _arm(self, experiment: KitExperiment, place: Place) -> _Arm | None:
        count = len(self.problems)
        runs = self._one_of(experiment, place, "runs", "num_runs", DEFAULT_RUNS)
        threads = self._one_of(experiment, place, "threads", "num_threads", [1])
        platform = self._platform_of(experiment, place)
        sme2 = self._state_of(experiment, place)
        cpus = self._cpus_of(experiment, place, platform)
        if experiment.extra_args:
            listed = " ".join(experiment.extra_args)
            self.notes.append(
                f"extra_args of {experiment.name} are left out, because they mean nothing here: {listed}"
            )
        if experiment.mode == "xnntrace":
            self.notes.append(
                f"mode xnntrace of {experiment.name} becomes the kernels pass: kernels are sampled as they "
                "run, while the kit's log only lists which were registered"
            )
        if len(self.problems) > count:
            return None
        assert platform is not None
        assert sme2 is not None
        return _Arm(
            experiment.name,
            place,
            platform,
            sme2,
            PASSES_OF_MODE[experiment.mode],
            runs,
            DEFAULT_WARMUP if experiment.warmup is None else experiment.warmup,
            tuple(dict.fromkeys(threads)),
            cpus,
        )

    def _one_of(self, experiment: KitExperiment, place: Place, key: str, other: str, default: Any) -> Any:
        given = [getattr(experiment, name) for name in (key, other) if getattr(experiment, name) is not None]
        if len(given) == 2 and given[0] != given[1]:
            self._problem((*place, other), f"contradicts {key}.", "Leave one of them.")
        return given[0] if given else default

    def _platform_of(self, experiment: KitExperiment, place: Place) -> str | None:
        said = f"{experiment.name} {experiment.runner_path or experiment.quiet_runner or ''}".lower()
        meant = [name for name in _PLATFORMS if name in said]
        if self.platform is not None:
            if meant != [self.platform]:
                self.notes.append(
                    f"{experiment.name} is measured on {self.platform}, as --platform says"
                    + (f", not on {meant[0]}" if meant else "")
                )
            return self.platform
        if len(meant) == 1:
            return meant[0]
        self._problem(
            place,
            f"neither the name {experiment.name!r} nor its runner_path names the platform."
            if not meant
            else f"the name {experiment.name!r} and its runner_path name different platforms.",
            "Give it with --platform.",
        )
        return None

    def _state_of(self, experiment: KitExperiment, place: Place) -> str | None:
        runner = experiment.runner_path or experiment.quiet_runner or ""
        by_name, by_path = _state_in(experiment.name), _state_in_path(runner)
        if by_name and by_path and by_name != by_path:
            self._problem(
                place,
                f"the name {experiment.name!r} says SME2 {by_name}, the runner_path {runner!r} {by_path}.",
                "Correct one of them.",
            )
            return None
        if by_name is None and by_path is None:
            self._problem(
                place,
                f"neither the name {experiment.name!r} nor the runner_path {runner!r} says whether SME2 is "
                "on or off.",
                "Put sme2_on or sme2_off into the name.",
            )
        return by_name or by_path

    def _cpus_of(self, experiment: KitExperiment, place: Place, platform: str | None) -> str | None:
        mask = experiment.cpu_affinity
        if mask is None or platform is None:
            return None
        # The kit passes it to taskset, which reads hexadecimal with and without 0x.
        if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,64}", mask) or int(mask, 16) == 0:
            self._problem(
                (*place, "cpu_affinity"), f"{mask!r} is not a CPU mask.", "Write it like '0x80' for CPU 7."
            )
            return None
        if platform not in ("android", "linux"):
            self.notes.append(
                f"cpu_affinity {mask} of {experiment.name} is left out: CPUs cannot be chosen on {platform}"
            )
            return None
        cpus = ",".join(str(cpu) for cpu in range(int(mask, 16).bit_length()) if int(mask, 16) >> cpu & 1)
        self.notes.append(f"cpu_affinity {mask} of {experiment.name} becomes cpus {cpus}")
        return cpus

    def _entries(self, arms: Sequence[_Arm]) -> list[dict[str, Any]]:
        """An entry for each platform, choice of CPUs and set of threads, with the states asked for."""
        entries: list[dict[str, Any]] = []
        for together in dict.fromkeys(arm.together for arm in arms):
            group = [arm for arm in arms if arm.together == together]
            by_states: dict[tuple[_Arm, ...], list[int]] = {}
            for threads in dict.fromkeys(count for arm in group for count in arm.threads):
                members = tuple(arm for arm in group if threads in arm.threads)
                by_states.setdefault(members, []).append(threads)
            entries += [self._entry(members, threads) for members, threads in by_states.items()]
        names = [entry["name"] for entry in entries]
        for index, entry in enumerate(entries):
            if names.count(entry["name"]) > 1:
                entry["name"] = f"{entry['name'][:70]}.{index + 1}"
        return entries

    def _entry(self, arms: Sequence[_Arm], threads: list[int]) -> dict[str, Any]:
        states = {arm.sme2 for arm in arms}
        # If the kit times and traces in different experiments, the numbers are those of the timing.
        timed = [arm for arm in arms if "kernels" not in arm.passes] or list(arms)
        runs, warmup = max(arm.runs for arm in timed), max(arm.warmup for arm in timed)
        names = [arm.name for arm in arms]
        if len({(arm.runs, arm.warmup) for arm in timed}) > 1:
            self.notes.append(
                f"{' and '.join(arm.name for arm in timed)} differ in runs or warmup; arms that are compared "
                f"are measured alike: {runs} runs, {warmup} warm-ups"
            )
        if len(arms) > 1:
            self.notes.append(
                f"{' and '.join(names)} become one session"
                + (", both states of SME2 interleaved" if len(states) == 2 else "")
            )
        else:
            self.notes.append(
                f"{names[0]} has no counterpart with SME2 {'off' if 'on' in states else 'on'}: a baseline, "
                "with nothing to compare it with"
            )
        named = {arm.sme2: _plain(arm.name) for arm in reversed(timed) if arm.says in (None, arm.platform)}
        platform: dict[str, Any] = {"name": arms[0].platform}
        if arms[0].cpus is not None:
            platform["cpus"] = arms[0].cpus
        passes = [
            kind for kind in ("latency", "etdump", "kernels") if any(kind in arm.passes for arm in arms)
        ]
        return {
            "name": _plain(_in_common(names)),
            **({"arms": named} if named and len(set(named.values())) == len(named) else {}),
            "platforms": [platform],
            "sme2": "both" if len(states) == 2 else states.pop(),
            "threads": threads,
            "iterations": runs,
            "warmup": warmup,
            "passes": passes,
        }

    def _comparisons(
        self, arms: Sequence[_Arm], entries: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        by_name = {arm.name: arm for arm in arms}
        pairs = self.config.analysis.compare_pairs
        found = []
        for index, pair in enumerate(pairs):
            place: Place = ("analysis", "compare_pairs", index)
            sides = [self._side(side, place, by_name) for side in (pair.baseline, pair.candidate)]
            baseline, candidate = sides
            if baseline is None or candidate is None:
                continue
            if why := _why_no_pair(*baseline, *candidate):
                self._problem(place, why)
                continue
            first, threads = baseline
            if first.sme2 == "on":
                self.notes.append(
                    f"the pair {pair.label or index + 1} has SME2 on as its baseline; off over on is shown"
                )
            # What arms have in common is measured in one entry for each number of threads.
            [entry] = [it for it in entries if first.is_of(it) and threads in it["threads"]]
            found.append(
                {
                    "platform": first.platform,
                    "threads": threads,
                    "entry": entry["name"],
                    **({"label": pair.label} if pair.label else {}),
                }
            )
        return found

    def _side(self, side: KitArm, place: Place, by_name: Mapping[str, _Arm]) -> tuple[_Arm, int] | None:
        if side.experiment not in by_name:
            near = did_you_mean(side.experiment, list(by_name))
            self._problem(place, f"there is no experiment {side.experiment!r}{near}.")
            return None
        arm = by_name[side.experiment]
        if side.threads is None and len(arm.threads) > 1:
            self._problem(place, f"{arm.name} has several thread counts, and the pair names none.")
            return None
        threads = arm.threads[0] if side.threads is None else side.threads
        if threads not in arm.threads:
            self._problem(
                place, f"{arm.name} is not measured with {threads} threads, but with {arm.threads}."
            )
            return None
        return arm, threads


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:80] or "entry"


def _in_common(names: Sequence[str]) -> str:
    """The words that all names begin with, such as `mac_sme2` of both arms; else the first name."""
    words = [re.split(r"(?<=[._-])", name) for name in names]
    alike = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*words, strict=False))
    return "".join(each[0] for each in alike).rstrip("._-") or names[0]


def _why_no_pair(first: _Arm, first_threads: int, second: _Arm, second_threads: int) -> str | None:
    names = f"{first.name} and {second.name}"
    if first_threads != second_threads:
        return (
            f"{names} are not compared: {first_threads} threads against {second_threads}. The difference "
            "would come from the threads as much as from SME2."
        )
    if first.together != second.together:
        return f"{names} are not compared: they run on different platforms or CPUs."
    if first.sme2 == second.sme2:
        return (
            f"{names} are not compared: SME2 is {first.sme2} in both. To measure noise, use "
            "`sme2 profile --aa`."
        )
    return None


def _state_in(text: str) -> str | None:
    off, on = bool(_OFF.search(text)), bool(_ON.search(text))
    # The "on" in "non_sme2" does not count; a text with both off and on says nothing.
    return None if off and on else "off" if off else "on" if on else None


def _state_in_path(text: str) -> str | None:
    parts = Path(text).parts
    if said := {state for part in parts if (state := _state_in(part))}:
        return said.pop() if len(said) == 1 else None
    return "on" if any(_BUILDS_ON.fullmatch(part) for part in parts) else None


def with_platform(experiment: Experiment, platform: str) -> Experiment:
    """The same experiment on another platform, without its settings for devices."""
    document = experiment.model_dump(exclude_none=True)
    for part in (document, *document.get("entries", ())):
        part.pop("platforms", None)
    document["platforms"] = [platform]
    for comparison in document.get("comparisons", ()):
        comparison.pop("platform", None)
    return Experiment.model_validate(document)
