"""`result.json`: what one runner process measured. Accepted only if all of it makes sense."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sme2_assets.evidence.documents import Count, Document, FileName, Flag, Number, Part, Text

RESULT_FILE = "result.json"

PassKind = Literal["latency", "etdump", "kernels", "work"]
# Samples and counts are attributed with the trace of their own process.
TRACED_PASSES: tuple[PassKind, ...] = ("etdump", "kernels", "work")
QOS_CLASSES = ("user-interactive", "user-initiated", "utility", "background")
# Warm-up is steady after two windows of inferences at the earliest; mirrors native/src/steady.h.
LEAST_STEADY_WARMUP = 10
MOST_SLOWDOWN_PERCENT = 1000.0

Positive = Annotated[Count, Field(ge=1)]
VectorBits = Annotated[Count, Field(ge=128)]
FloatType = Literal["float32", "float16", "float64"]
DataType = (
    FloatType | Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]
)


class CpuFacts(Part):
    """What the CPU offers, and what was hidden from the kernels."""

    arch: Text
    features_seen: tuple[Text, ...]
    features_masked: tuple[Text, ...]
    sme2: Literal["on", "off"]
    sme2_usable: Flag
    sme_vector_bits: VectorBits | None
    sve_vector_bits: VectorBits | None

    @model_validator(mode="after")
    def _features_fit_the_state(self) -> Self:
        seen, masked = set(self.features_seen), set(self.features_masked)
        if not masked <= seen:
            raise ValueError("features_masked has features that were not seen")
        if masked and self.sme2 == "on":
            raise ValueError("features_masked is not empty with SME2 on")
        if self.sme2_usable is not ("sme2" in seen - masked):
            raise ValueError("sme2_usable is at odds with the features")
        if self.sme2 == "off" and any(name.startswith("sme") for name in seen - masked):
            raise ValueError("features_masked leaves SME visible with SME2 off")
        return self


class TensorFact(Part):
    dtype: DataType
    shape: tuple[Count, ...]


class OutputFact(TensorFact):
    file: FileName
    """Inside the outputs folder."""


class EtdumpFact(Part):
    file: FileName
    bytes: Positive


class SamplesFact(Part):
    """The samples file of a kernels pass; `dropped` samples were taken but did not fit in it."""

    file: FileName
    bytes: Positive
    count: Count
    dropped: Count


class RunnerVersions(Part):
    executorch: Text
    runner: Text
    compiler: Text


class Conditions(Part):
    """One reading: at the start, in the middle or at the end of the measured inferences, after warm-up.

    `cpu` is where the measuring thread was. `cpu_khz` has the clock rates of the CPUs that the process may
    use, where they can be read; `temperature_c` is that of the hottest CPU sensor.
    """

    at: Literal["start", "middle", "end"]
    cpu: Count | None
    # Keys of a JSON object are text.
    cpu_khz: dict[Annotated[int, Field(ge=0, lt=10_000)], Positive]
    temperature_c: Annotated[Number, Field(ge=-40, le=150)] | None


def _warm_up_by_time(v1: dict[str, Any]) -> dict[str, Any]:
    """Version 2 can warm up and measure for a wall time; before, all of the warm-up was kept and traced."""
    unknown = {"warmup_wall_ns": None, "timed_wall_ns": None, "iteration_cycles": None}
    return {**v1, "warmup_stride": 1, "warmup_traced": True, **unknown}


class RunnerResult(Document):
    """One run of the runner: one process, one pass.

    `warmup_ns` has every `warmup_stride`-th warm-up inference, `iteration_ns` every timed one, and
    `iteration_cycles` the CPU cycles of the measuring thread in each (None where they are not counted).
    `steady` is whether times had settled by the end of warm-up; None if warm-up was a fixed number of
    inferences, so that nothing checked. Times with a `slowdown_percent` above 0 were made longer on purpose
    and do not measure the model. `cpus` are those that the process was allowed to use (None where the system
    does not say, as on macOS), `qos` is macOS's quality of service of its threads. `conditions` were read
    between inferences, the first after warm-up.

    Fields with a default were added later: results stored before the runner wrote them stay readable.
    """

    VERSION: ClassVar[int] = 2
    UPGRADES: ClassVar = {1: _warm_up_by_time}
    REMEDY: ClassVar[str] = "Look at the runner's log; if the file is damaged, measure again."

    pass_kind: Annotated[PassKind, Field(alias="pass")]
    method: Text
    threads: Positive
    warmup_iterations: Count
    warmup_stride: Positive
    warmup_wall_ns: Count | None
    warmup_traced: Flag
    iterations: Positive
    timed_wall_ns: Count | None
    load_ns: Count
    warmup_ns: tuple[Count, ...]
    iteration_ns: tuple[Count, ...]
    iteration_cycles: tuple[Positive | None, ...] | None
    peak_memory_bytes: Positive
    cpu: CpuFacts
    etdump: EtdumpFact | None
    inputs: tuple[TensorFact, ...]
    outputs: tuple[OutputFact, ...]
    versions: RunnerVersions
    samples: SamplesFact | None = None
    steady: Flag | None = None
    slowdown_percent: Annotated[Number, Field(ge=0, le=MOST_SLOWDOWN_PERCENT)] = 0.0
    cpus: tuple[Count, ...] | None = None
    qos: Text | None = None
    conditions: tuple[Conditions, ...] = ()

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for name, values, made in (
            ("warmup_ns", self.warmup_ns, -(-self.warmup_iterations // self.warmup_stride)),
            ("iteration_ns", self.iteration_ns, self.iterations),
            ("iteration_cycles", self.iteration_cycles, self.iterations),
        ):
            if values is not None and len(values) != made:
                raise ValueError(f"{name} has {len(values)} values where {made} inferences ran")
        if self.steady and self.warmup_iterations < LEAST_STEADY_WARMUP:
            raise ValueError(f"steady after {self.warmup_iterations} warm-up inferences, too few to tell")
        for name, fact, passes in (
            ("etdump", self.etdump, TRACED_PASSES),
            ("samples", self.samples, ("kernels",)),
        ):
            if (fact is not None) != (self.pass_kind in passes):
                wrong = "does not belong to" if fact else "is missing in"
                raise ValueError(f"{name} {wrong} the {self.pass_kind} pass")
        if self.cpus is not None and (not self.cpus or list(self.cpus) != sorted(set(self.cpus))):
            raise ValueError("cpus is not a list of CPUs in ascending order")
        return self

    @property
    def traced_warmup(self) -> int:
        """How many inferences at the start of the trace are warm-up."""
        return self.warmup_iterations if self.warmup_traced else 0
