"""What the runner leaves behind: its result file, its exit code, its words on stderr.

The result file is believed only when all of it makes sense: a field that is missing, unknown, of the wrong
type or at odds with another one is a `RunnerError`. The exit codes mirror `native/src/failure.h`.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sme2_assets.errors import RunnerError
from sme2_assets.targets.heat import Conditions

RESULT_SCHEMA = 1
PASSES = ("latency", "etdump", "kernels")
MOMENTS = ("start", "middle", "end")
QOS_CLASSES = ("user-interactive", "user-initiated", "utility", "background")
# Runs that were stored before the runner told these stay readable.
_ADDED_LATER: dict[str, Any] = {"cpus": None, "qos": None, "conditions": []}
# Warm-up counts as steady after two windows of inferences at the earliest; mirrors native/src/steady.h.
LEAST_STEADY_WARMUP = 10
MOST_SLOWDOWN_PERCENT = 1000.0
DTYPES = ("float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")

_REPORT = "This is a defect: please report it with the log."

EXIT_MEANINGS: dict[int, tuple[str, str]] = {
    2: ("The runner was called with wrong flags", "See sme2_runner --help for its flags."),
    3: ("The model is missing, broken or lacks the method", "Export the model again."),
    4: ("The inputs do not fit the model", "Export the model again: its inputs are written with it."),
    5: ("The inference failed", "Look at the log lines of the runner."),
    6: ("The model gave NaN or infinity", "Check the model at this precision: fp16 overflows above 65504."),
    7: ("The runner could not write its files", "Check that the folder is writable and the disk has space."),
    8: (
        "The event tracer recorded nothing",
        "Install executorch 1.5.1 or newer: its runtime has one.",
    ),
    9: ("The sampler could not be started", "Leave the kernels pass out, or allow timers and signals there."),
    126: (
        "The runner could not be started",
        "Check that the binary is executable and of this machine.",
    ),
    127: ("The runner or one of its libraries was not found", "Build the runner again."),
}

_SIGNAL_MEANINGS: dict[int, tuple[str, str]] = {
    signal.SIGILL: (
        "The runner met an instruction that this CPU (or emulator) does not have",
        "Update the emulator (QEMU 10.1 or newer has SME2), or run with SME2 off.",
    ),
    signal.SIGSEGV: ("The runner crashed on a bad memory access", _REPORT),
    signal.SIGBUS: ("The runner crashed on a bad memory access", _REPORT),
    signal.SIGABRT: (
        "The runner gave up on a failed check inside ExecuTorch",
        "Look at the log lines of the runner.",
    ),
    signal.SIGFPE: ("The runner crashed on an arithmetic error", _REPORT),
    signal.SIGKILL: (
        "The runner was killed from outside, most likely because memory ran out",
        "Use a smaller model or a machine with more memory.",
    ),
    signal.SIGTERM: ("The runner was asked to stop", "Run it again."),
    signal.SIGINT: ("The runner was interrupted", "Run it again."),
}

_ERROR_PREFIX = "sme2_runner: error: "
_LOG_LINES_SHOWN = 8
# ExecuTorch's log lines below the level of an error: "I 00:00:00.000704 executorch:...".
_CHATTER = re.compile(r"[DI] \d\d:\d\d:\d\d\.\d+ executorch:")


@dataclass(frozen=True)
class CpuFacts:
    """What the CPU offers, what of it was hidden from the kernels."""

    arch: str
    features_seen: tuple[str, ...]
    features_masked: tuple[str, ...]
    sme2: str
    sme2_usable: bool
    sme_vector_bits: int | None
    sve_vector_bits: int | None


@dataclass(frozen=True)
class TensorFact:
    """An input or an output; `file` is the name inside the outputs folder, None for an input."""

    dtype: str
    shape: tuple[int, ...]
    file: str | None = None


@dataclass(frozen=True)
class EtdumpFact:
    file: str
    bytes: int


@dataclass(frozen=True)
class SamplesFact:
    """The samples file of a kernels pass; `dropped` samples were taken but found no room in it."""

    file: str
    bytes: int
    count: int
    dropped: int


@dataclass(frozen=True)
class RunnerVersions:
    executorch: str
    runner: str
    compiler: str


@dataclass(frozen=True)
class RunnerResult:
    """One run of the runner: one process, one pass.

    `steady` tells how warm-up ended: True when its times had settled, False when it reached its cap before,
    None when its length was fixed, so that nobody looked. Times with a `slowdown_percent` above 0 were made
    longer on purpose and measure no model. `cpus` are those on which the process was allowed (None where the
    system does not tell, as on macOS), `qos` is macOS's quality of service of its threads. `conditions` were
    read between inferences, the first after warm-up.
    """

    pass_kind: str
    method: str
    threads: int
    warmup_iterations: int
    iterations: int
    steady: bool | None
    slowdown_percent: float
    load_ns: int
    warmup_ns: tuple[int, ...]
    iteration_ns: tuple[int, ...]
    peak_memory_bytes: int
    cpu: CpuFacts
    etdump: EtdumpFact | None
    samples: SamplesFact | None
    inputs: tuple[TensorFact, ...]
    outputs: tuple[TensorFact, ...]
    versions: RunnerVersions
    cpus: tuple[int, ...] | None = None
    qos: str | None = None
    conditions: tuple[Conditions, ...] = ()


def read_result(path: Path) -> RunnerResult:
    """The result file, wholly checked."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise RunnerError(
            f"The runner left no result file at {path}", "Look at the runner's exit code."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunnerError(f"{path} is not a result file of the runner ({error})", "Run it again.") from error
    return _Reader(path).result(document)


def read_cpu_facts(text: str) -> CpuFacts:
    """What `sme2_runner --cpu` prints."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RunnerError(
            f"The runner's answer to --cpu is not JSON ({error})", "Build the runner again."
        ) from error
    return _Reader("sme2_runner --cpu").cpu(document, "cpu")


def runner_failure(returncode: int, stderr_tail: str) -> RunnerError:
    """The error for a person, from the exit code (or signal) and the end of stderr."""
    meaning, remedy = _meaning(returncode)
    lines = [line for line in stderr_tail.splitlines() if line.strip()]
    said = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)]
    what = f"{meaning} (exit code {returncode})" if returncode >= 0 else f"{meaning} (signal {-returncode})"
    if said:
        message, _, own_remedy = said[-1].partition("; ")
        what = f"{what}: {message}"
        remedy = own_remedy or remedy
    log = [line for line in lines if not line.startswith(_ERROR_PREFIX) and not _CHATTER.match(line)]
    if log:
        what += "\n  Log of the runner:\n" + "\n".join(f"    {line}" for line in log[-_LOG_LINES_SHOWN:])
    return RunnerError(what, remedy)


def _meaning(returncode: int) -> tuple[str, str]:
    if returncode in EXIT_MEANINGS:
        return EXIT_MEANINGS[returncode]
    # A negative code is subprocess's way to tell a signal, 128 + n a shell's (so adb's).
    number = -returncode if returncode < 0 else returncode - 128
    if number in _SIGNAL_MEANINGS:
        return _SIGNAL_MEANINGS[number]
    return "The runner failed in a way it does not explain", _REPORT


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class _Reader:
    """Takes a result apart field by field; every complaint names the file and the field."""

    def __init__(self, source: Path | str) -> None:
        self.source = source

    def fail(self, field: str, why: str) -> NoReturn:
        raise RunnerError(
            f"The result of the runner ({self.source}) cannot be believed: {field} {why}",
            "Run it again; if it stays so, build the runner again.",
        )

    def fields(self, value: Any, name: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(name, "is not an object")
        if missing := [key for key in keys if key not in value]:
            self.fail(name, f"lacks {', '.join(missing)}; it is of another version of the runner")
        if unknown := sorted(set(value) - set(keys)):
            self.fail(
                name, f"has unknown fields: {', '.join(unknown)}; it is of another version of the runner"
            )
        return value

    def text(self, value: Any, name: str) -> str:
        if not isinstance(value, str) or not value:
            self.fail(name, "is not a text")
        return value

    def choice(self, value: Any, name: str, choices: tuple[str, ...]) -> str:
        if value not in choices:
            self.fail(name, f"is {value!r}, not one of {', '.join(choices)}")
        return str(value)

    def file_name(self, value: Any, name: str) -> str:
        text = self.text(value, name)
        if Path(text).name != text:
            self.fail(name, f"is {text!r}, not a plain file name")
        return text

    def count(self, value: Any, name: str, least: int = 0) -> int:
        # bool is an int to Python, not to JSON.
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.fail(name, f"is {value!r}, not a whole number of at least {least}")
        return value

    def steady(self, value: Any, name: str, warmup_iterations: int) -> bool | None:
        if value is not None and not isinstance(value, bool):
            self.fail(name, f"is {value!r}, not true, false or null")
        if value and warmup_iterations < LEAST_STEADY_WARMUP:
            self.fail(name, f"is true after {warmup_iterations} warm-up inferences, too few to tell")
        return value

    def slowdown(self, value: Any, name: str) -> float:
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 <= value <= MOST_SLOWDOWN_PERCENT
        ):
            self.fail(name, f"is {value!r}, not a number from 0 to {MOST_SLOWDOWN_PERCENT:g}")
        return float(value)

    def items(self, value: Any, name: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            self.fail(name, "is not a list")
        return tuple(read(item, f"{name}[{i}]") for i, item in enumerate(value))

    def cpu(self, value: Any, name: str) -> CpuFacts:
        names = ("arch", "features_seen", "features_masked", "sme2", "sme2_usable")
        f = self.fields(value, name, (*names, "sme_vector_bits", "sve_vector_bits"))
        seen = self.items(f["features_seen"], f"{name}.features_seen", self.text)
        masked = self.items(f["features_masked"], f"{name}.features_masked", self.text)
        state = self.choice(f["sme2"], f"{name}.sme2", ("on", "off"))
        usable = f["sme2_usable"]
        if not set(masked) <= set(seen):
            self.fail(f"{name}.features_masked", "has features that were not seen")
        if masked and state == "on":
            self.fail(f"{name}.features_masked", "is not empty with SME2 on")
        if usable is not ("sme2" in seen and "sme2" not in masked):
            self.fail(f"{name}.sme2_usable", f"is {usable!r}, at odds with the features")
        if state == "off" and any(s.startswith("sme") for s in set(seen) - set(masked)):
            self.fail(f"{name}.features_masked", "leaves SME visible with SME2 off")
        bits = {
            key: None if f[key] is None else self.count(f[key], f"{name}.{key}", 128)
            for key in ("sme_vector_bits", "sve_vector_bits")
        }
        return CpuFacts(self.text(f["arch"], f"{name}.arch"), seen, masked, state, bool(usable), **bits)

    def cpus(self, value: Any, name: str) -> tuple[int, ...]:
        cpus = self.items(value, name, self.count)
        if not cpus or list(cpus) != sorted(set(cpus)):
            self.fail(name, "is not a list of CPUs in ascending order")
        return cpus

    def temperature(self, value: Any, name: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not -40 <= value <= 150:
            self.fail(name, f"is {value!r}, not a temperature of a chip")
        return float(value)

    def conditions(self, value: Any, name: str) -> Conditions:
        f = self.fields(value, name, ("at", "cpu", "cpu_khz", "temperature_c"))
        khz = f["cpu_khz"]
        if not isinstance(khz, dict) or not all(re.fullmatch(r"\d{1,4}", cpu, re.ASCII) for cpu in khz):
            self.fail(f"{name}.cpu_khz", "does not map CPUs to frequencies")
        return Conditions(
            at=self.choice(f["at"], f"{name}.at", MOMENTS),
            cpu=None if f["cpu"] is None else self.count(f["cpu"], f"{name}.cpu"),
            cpu_khz={int(cpu): self.count(khz[cpu], f"{name}.cpu_khz.{cpu}", 1) for cpu in khz},
            temperature_c=(
                None
                if f["temperature_c"] is None
                else self.temperature(f["temperature_c"], f"{name}.temperature_c")
            ),
        )

    def tensor(self, value: Any, name: str, *, with_file: bool) -> TensorFact:
        f = self.fields(value, name, ("file", "dtype", "shape") if with_file else ("dtype", "shape"))
        return TensorFact(
            dtype=self.choice(f["dtype"], f"{name}.dtype", DTYPES),
            shape=self.items(f["shape"], f"{name}.shape", self.count),
            file=self.file_name(f["file"], f"{name}.file") if with_file else None,
        )

    def etdump(self, value: Any, name: str) -> EtdumpFact:
        f = self.fields(value, name, ("file", "bytes"))
        return EtdumpFact(
            file=self.file_name(f["file"], f"{name}.file"), bytes=self.count(f["bytes"], f"{name}.bytes", 1)
        )

    def samples(self, value: Any, name: str) -> SamplesFact:
        f = self.fields(value, name, ("file", "bytes", "count", "dropped"))
        return SamplesFact(
            file=self.file_name(f["file"], f"{name}.file"),
            bytes=self.count(f["bytes"], f"{name}.bytes", 1),
            count=self.count(f["count"], f"{name}.count"),
            dropped=self.count(f["dropped"], f"{name}.dropped"),
        )

    def versions(self, value: Any, name: str) -> RunnerVersions:
        keys = ("executorch", "runner", "compiler")
        f = self.fields(value, name, keys)
        return RunnerVersions(*(self.text(f[key], f"{name}.{key}") for key in keys))

    def durations(self, value: Any, name: str, expected: int) -> tuple[int, ...]:
        durations = self.items(value, name, self.count)
        if len(durations) != expected:
            self.fail(name, f"has {len(durations)} values where {expected} inferences ran")
        return durations

    def result(self, value: Any) -> RunnerResult:
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != RESULT_SCHEMA or isinstance(schema, bool):
            self.fail("schema", f"is {schema!r}, this version reads {RESULT_SCHEMA}")
        f = self.fields(
            {**_ADDED_LATER, **value},
            "the file",
            (
                *("schema", "pass", "method", "threads", "warmup_iterations", "iterations", "steady"),
                *("slowdown_percent", "load_ns", "warmup_ns", "iteration_ns", "peak_memory_bytes", "cpu"),
                *("etdump", "samples", "inputs", "outputs", "versions", *_ADDED_LATER),
            ),
        )
        kind = self.choice(f["pass"], "pass", PASSES)
        warmup_iterations = self.count(f["warmup_iterations"], "warmup_iterations")
        iterations = self.count(f["iterations"], "iterations", 1)
        for file, passes in (("etdump", ("etdump", "kernels")), ("samples", ("kernels",))):
            if (f[file] is not None) != (kind in passes):
                wrong = "is missing in" if kind in passes else "does not belong to"
                self.fail(file, f"{wrong} the {kind} pass")
        return RunnerResult(
            pass_kind=kind,
            method=self.text(f["method"], "method"),
            threads=self.count(f["threads"], "threads", 1),
            warmup_iterations=warmup_iterations,
            iterations=iterations,
            steady=self.steady(f["steady"], "steady", warmup_iterations),
            slowdown_percent=self.slowdown(f["slowdown_percent"], "slowdown_percent"),
            load_ns=self.count(f["load_ns"], "load_ns"),
            warmup_ns=self.durations(f["warmup_ns"], "warmup_ns", warmup_iterations),
            iteration_ns=self.durations(f["iteration_ns"], "iteration_ns", iterations),
            peak_memory_bytes=self.count(f["peak_memory_bytes"], "peak_memory_bytes", 1),
            cpu=self.cpu(f["cpu"], "cpu"),
            etdump=None if f["etdump"] is None else self.etdump(f["etdump"], "etdump"),
            samples=None if f["samples"] is None else self.samples(f["samples"], "samples"),
            inputs=self.items(f["inputs"], "inputs", lambda v, n: self.tensor(v, n, with_file=False)),
            outputs=self.items(f["outputs"], "outputs", lambda v, n: self.tensor(v, n, with_file=True)),
            versions=self.versions(f["versions"], "versions"),
            cpus=None if f["cpus"] is None else self.cpus(f["cpus"], "cpus"),
            qos=None if f["qos"] is None else self.text(f["qos"], "qos"),
            conditions=self.items(f["conditions"], "conditions", self.conditions),
        )
