"""What an experiment file may contain.

Belongs here: keys, types, ranges, and what they mean, which is also what editors show. Does not: whether a
model or a device exists (check), and what is measured in the end (plan).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sme2_assets.errors import did_you_mean
from sme2_assets.models.spec import PRECISIONS
from sme2_assets.profiling.limits import MOST_INFERENCES, MOST_ROUNDS, MOST_THREADS
from sme2_assets.profiling.plan import PASSES
from sme2_assets.written.problems import Problem, WrittenError

SCHEMA_ID = "sme2-experiment"
# In place of a platform's name: all that work on this machine.
AUTO = "auto"

PlatformName = Literal["auto", "linux", "mac", "android", "emulated"]
Precision = Literal["fp32", "fp16", "int8", "int8_dynamic", "int4"]
PassName = Literal["latency", "etdump", "kernels"]
State = Literal["both", "on", "off"]
assert set(Precision.__args__) == set(PRECISIONS)  # type: ignore[attr-defined]
assert set(PassName.__args__) == set(PASSES)  # type: ignore[attr-defined]

_CPU_CHOICE = re.compile(
    r"prime|performance|efficiency|all|0[xX][0-9a-fA-F]+|[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def listed(value: Any) -> Any:
    """Allows a single value instead of a list of one."""
    return value if isinstance(value, list) or value is None else [value]


def _platform(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _distinct(values: list[Any]) -> list[Any]:
    for at, value in enumerate(values):
        if value in values[:at]:
            raise ValueError(f"has {value!r} twice.")
    return values


def _cpus(value: Any) -> Any:
    # YAML reads a single CPU as a number.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _cpu_choice(value: str) -> str:
    if not _CPU_CHOICE.fullmatch(value):
        raise ValueError(
            f"cannot be {value!r}: name a cluster (prime, performance, efficiency), CPUs (0-3,7) or a mask "
            "(0xf0)."
        )
    return value


def _needed_passes(passes: list[str]) -> list[str]:
    for needed in ("latency", "etdump"):
        if needed not in passes:
            raise ValueError(
                f"leaves out {needed}: latency and etdump always run, because no result is shown "
                "unless its operators were seen and add up. Only kernels may be left out."
            )
    return passes


def _plain_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"cannot be {value!r}: use letters, digits, '.', '_' and '-', beginning with a letter or a digit."
        )
    return value


def require_printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("has characters in it that cannot be printed.")
    return value


def _printable_lines(value: str) -> str:
    require_printable(value.replace("\n", ""))
    return value


Name = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(_plain_name)]
Text = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(require_printable)]
Threads = Annotated[int, Field(ge=1, le=MOST_THREADS)]


class ExperimentError(WrittenError):
    """An experiment file that cannot be run as it is, with every problem that was found."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        super().__init__(name, problems, "docs/experiments.md")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Platform(_Strict):
    """Where to measure, and how to set up the device."""

    name: PlatformName = Field(
        description="linux and mac: this machine; linux with a device: another one. android: a device. "
        "emulated: kernels and outputs with SME2 where no CPU has it; its times mean nothing. auto: all that "
        "work here."
    )
    device: Text | None = Field(
        default=None,
        description="Another machine, as ssh://user@host:port; the serial of an Android device; a name or "
        "label:LABEL from the inventory; `any` for whichever is free; or an emulated CPU, as emulated:m4. "
        "Default: this machine; on android $ANDROID_SERIAL, else the only one connected; emulated:max.",
    )
    cpus: Annotated[
        Text | None,
        BeforeValidator(_cpus, json_schema_input_type=str | int | None),
        AfterValidator(lambda value: None if value is None else _cpu_choice(value)),
    ] = Field(
        default=None,
        description="CPUs to run on: a cluster (prime, performance, efficiency), a list such as 0-3,7, or a "
        "mask such as '0xf0'. Default: up to the system.",
    )
    qos: Literal["user-interactive", "user-initiated", "utility", "background"] | None = Field(
        default=None,
        description="macOS: quality of service of the runner's threads, which decides the kind of core. "
        "Default: up to the system.",
    )
    power: Literal["boost", "app"] | None = Field(
        default=None, description="Android: power mode of the device during the session. Default: unchanged."
    )

    @model_validator(mode="after")
    def _only_where_it_means_something(self) -> Platform:
        for key, places in (
            ("device", ("linux", "android", "emulated")),
            ("power", ("android",)),
            ("cpus", ("linux", "android")),
            ("qos", ("mac",)),
        ):
            if getattr(self, key) is not None and self.name not in places:
                raise ValueError(f"{key} means nothing on {self.name}: it is for {' and '.join(places)}.")
        return self


class Settings(_Strict):
    """What is measured and how much of it. A key that is left out has the platform's default."""

    models: (
        Annotated[
            list[Text],
            Field(min_length=1, max_length=200),
            AfterValidator(_distinct),
            BeforeValidator(listed, json_schema_input_type=Text | list[Text]),
        ]
        | None
    ) = Field(
        default=None,
        description="What to measure: any name that `sme2 profile` takes, such as toy_cnn, toy_cnn-int8 or "
        "hf:bert@layers=2, or the path of a .pte, relative to this file.",
    )
    precisions: (
        Annotated[
            list[Precision],
            Field(min_length=1),
            AfterValidator(_distinct),
            BeforeValidator(listed, json_schema_input_type=Precision | list[Precision]),
        ]
        | None
    ) = Field(
        default=None,
        description="Precisions of the models that name none. Default: all that a model is offered in.",
    )
    platforms: (
        Annotated[
            list[
                Annotated[
                    Platform,
                    BeforeValidator(_platform, json_schema_input_type=PlatformName | Platform),
                ]
            ],
            Field(min_length=1, max_length=50),
            AfterValidator(_distinct),
            BeforeValidator(
                listed, json_schema_input_type=PlatformName | Platform | list[PlatformName | Platform]
            ),
        ]
        | None
    ) = Field(default=None, description="Where to measure. Default: auto.")
    sme2: State | None = Field(
        default=None, description="Which states of SME2; a comparison needs both. Default: both."
    )
    threads: (
        Annotated[
            list[Threads],
            Field(min_length=1, max_length=50),
            AfterValidator(_distinct),
            BeforeValidator(listed, json_schema_input_type=Threads | list[Threads]),
        ]
        | None
    ) = Field(
        default=None, description="Threads of the runner; each number is a separate session. Default: 1."
    )
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = Field(
        default=None,
        description="Exactly this many rounds. Default: 10 to 30 on hardware, as needed; 1 emulated.",
    )
    budget_s: Annotated[float, Field(ge=0, le=86400)] | None = Field(
        default=None, description="When to stop adding rounds, in seconds. Default: 120 on hardware."
    )
    iterations: Annotated[int, Field(ge=1, le=MOST_INFERENCES)] | None = Field(
        default=None,
        description="Exactly this many timed inferences per process. Default: at least 10 and 0.2 s on "
        "hardware; 1 emulated.",
    )
    warmup: Annotated[int, Field(ge=0, le=MOST_INFERENCES)] | None = Field(
        default=None,
        description="Exactly this many warm-ups per process. Default: at least 10 and 0.3 s on hardware; 0 "
        "emulated.",
    )
    passes: (
        Annotated[
            list[PassName],
            Field(min_length=1),
            AfterValidator(_distinct),
            AfterValidator(_needed_passes),
            BeforeValidator(listed, json_schema_input_type=PassName | list[PassName]),
        ]
        | None
    ) = Field(
        default=None,
        description="latency: inference times, no tracer. etdump: operator times. kernels: which kernels "
        "ran, by sampling. The first two always run. Default: all three.",
    )
    runner: Literal["wheel", "source"] | None = Field(
        default=None,
        description="wheel: one binary, SME2 masked for off. source: the pair that `sme2 build-runner` made, "
        "one binary per arm. Default: wheel.",
    )
    timeout_s: Annotated[float, Field(gt=0, le=86400)] | None = Field(
        default=None, description="Limit for one runner process, in seconds. Default: 600 on hardware."
    )
    quiet_patience_s: Annotated[float, Field(ge=0, le=86400)] | None = Field(
        default=None,
        description="How long a session waits for a quiet machine, in seconds. Default: 20 on hardware.",
    )


class Arms(_Strict):
    """What the states of SME2 are called in the names of exported files."""

    off: Name | None = Field(default=None, description="SME2 off. Default: such as linux_sme2_off.")
    on: Name | None = Field(default=None, description="SME2 on. Default: such as linux_sme2_on.")


class Entry(Settings):
    """A part of the experiment with its own settings; the others are those of the experiment."""

    name: Name | None = Field(
        default=None, description="What the part is called where its results are shown."
    )
    arms: Arms | None = Field(
        default=None, description="What its states of SME2 are called in the names of exported files."
    )


class Comparison(_Strict):
    """Which sessions to compare. A key that is left out matches any."""

    model: Text | None = Field(default=None, description="Variants of this model, as under models.")
    platform: PlatformName | None = Field(default=None, description="Only on this platform.")
    threads: Threads | None = Field(default=None, description="Only with this many threads.")
    entry: Name | None = Field(default=None, description="Only of the entry with this name.")
    label: Text | None = Field(default=None, description="What the comparison is called where it is shown.")


class Report(_Strict):
    """What is shown at the end."""

    operators: bool = Field(default=False, description="Also every operator of each comparison.")


class Experiment(Settings):
    """What to measure.

    Every model at every precision is measured on every platform with every number of threads, both states
    of SME2 interleaved. With entries, this holds for each of them; what one leaves out is taken from here.
    """

    name: Name | None = Field(default=None, description="Name of the experiment. Default: the file's name.")
    description: Annotated[str, Field(max_length=2000), AfterValidator(_printable_lines)] | None = Field(
        default=None, description="For people."
    )
    entries: Annotated[list[Entry], Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="Parts with their own settings."
    )
    comparisons: Annotated[list[Comparison], Field(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="Which pairs of SME2 on and off to show at the end. Default: all that are measured.",
    )
    report: Report = Field(default_factory=Report, description="What is shown at the end.")
    output: Text | None = Field(
        default=None,
        description="A folder for exports, reports and a summary, relative to this file. Default: none; "
        "everything is in the data folder anyway.",
    )

    @model_validator(mode="after")
    def _something_to_measure(self) -> Experiment:
        parts = self.parts()
        for index, part in enumerate(parts):
            if not part.models:
                where = f"entries[{index}] names no models, and" if self.entries else "models is missing:"
                raise ValueError(f"{where} there is nothing to measure without a model.")
        names = [entry.name for entry in self.entries or [] if entry.name]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two entries have the name {name!r}.")
        for comparison in self.comparisons or []:
            if comparison.entry not in (None, *names):
                near = did_you_mean(str(comparison.entry), names)
                raise ValueError(
                    f"a comparison is of an entry {comparison.entry!r}, which does not exist{near}."
                )
        return self

    def parts(self) -> list[Entry]:
        """The entries with everything they leave out filled in; the experiment itself if it has none."""
        common = {key: getattr(self, key) for key in Settings.model_fields}
        return [
            Entry.model_construct(**common | {key: own for key, own in entry if own is not None})
            for entry in self.entries or [Entry()]
        ]


# Which model belongs to which key, for errors.
MODELS: dict[str, type[BaseModel]] = {
    "": Experiment,
    "entries": Entry,
    "arms": Arms,
    "platforms": Platform,
    "comparisons": Comparison,
    "report": Report,
}


def json_schema() -> dict[str, Any]:
    """The schema for editors."""
    schema = Experiment.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "Experiment file of sme2 run",
    }
