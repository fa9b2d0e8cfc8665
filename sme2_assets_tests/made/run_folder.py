"""Run folders as a session leaves them, with times that the test knows.

For what no machine at hand gives: SME2 hardware, other devices, wrong outputs. Everything after the
measurement is the real code: the folder is read by `RunReader`.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sme2_assets.analysis.timeline import execute_durations
from sme2_assets.etdump import read_etdump
from sme2_assets.evidence import operators
from sme2_assets.evidence.device import Fidelity
from sme2_assets.evidence.folder import LOG_FILE
from sme2_assets.evidence.manifest import Context, Identity, Info, Manifest, Moment, Process
from sme2_assets.evidence.operators import OPERATORS_FILE
from sme2_assets.evidence.result import TRACED_PASSES
from sme2_assets.evidence.samples import SAMPLES_FILE
from sme2_assets.store import sha256_of_file
from sme2_assets.targets.environment.snapshot import take_snapshot
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import RunReader, write_runs
from sme2_assets_tests.made.traces import Delegate, Portable, inference, trace_bytes

# Name and microseconds with SME2 off; only those with a packed name have an SME2 kernel.
FIRST_DELEGATE = (
    ("Transpose (ND, X32) #1", 40),
    ("Convolution (NHWC, {}) IGEMM #1", 700),
    ("HardSwish (NC) #1", 90),
    ("Fully Connected (NC, {}) GEMM #1", 300),
    ("Max Pooling (NHWC, F32) #1", 60),
)
# A missed opportunity: this one keeps its kernel.
SECOND_DELEGATE = (("Fully Connected (NC, F32) GEMM #1", 100), ("Softmax (NC, F32) #1", 5))
PORTABLE = "native_call_mean.out"
# What an inference runs that takes the other branch: one matrix product, between transposes of its own.
BRANCH = (
    ("Transpose (ND, X32) #1", 80),
    ("Fully Connected (NC, {}) GEMM #1", 20_000),
    ("Transpose (ND, X32) #2", 60),
)
SME2_KERNEL = "kai_kernel_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"
# fmopa za0.s, p0/m, p0/m, z0.s, z0.s; fmla v0.4s, v0.4s, v0.4s
SME_WORD, SIMD_WORD = 0x80800000, 0x4E20CC00


def _node(kind: str, module: str, line: int, macs: int | None = None) -> operators.Node:
    return operators.Node(
        kind=kind,
        edge_ops=[f"aten.{module.rpartition('.')[2]}.default"],
        module=module,
        module_type="Module",
        source=f"model.py:{line}",
        code=f"x = self.{module}(x)",
        input_shapes=[[1, 16, 8, 8]],
        output_shapes=[[1, 16, 8, 8]],
        data_types=["float32"],
        macs=macs,
        groups=1 if "Conv" in kind else None,
        kernel=[3, 3] if "Conv" in kind else None,
        stride=[1, 1] if "Conv" in kind else None,
        inserted=kind == "XNNStaticTranspose",
        debug_handle=line,
    )


# What the operators above are in a model: two blocks of one network, and its head.
PROGRAM = operators.ProgramOperators(
    delegates=[
        operators.Delegate(
            backend="XnnpackBackend",
            nodes=[
                _node("XNNStaticTranspose", "stem", 1),
                _node("XNNConv2d", "features.0.conv", 2, macs=7_000_000),
                _node("XNNHardswish", "features.0.act", 3),
                _node("XNNFullyConnected", "features.1.linear", 4, macs=3_000_000),
                _node("XNNMaxPooling2d", "features.1.pool", 5),
            ],
        ),
        operators.Delegate(
            backend="XnnpackBackend",
            nodes=[
                _node("XNNFullyConnected", "head.linear", 7, macs=1_000_000),
                _node("XNNSoftmax", "head.softmax", 8),
            ],
        ),
    ],
    portable=[_node("aten::mean.out", "pool", 6)],
)


def _deep(depth: int) -> operators.ProgramOperators:
    """The same model with its delegated blocks so many times."""
    if depth == 1:
        return PROGRAM
    delegates = [
        operators.Delegate(
            backend=each.backend,
            nodes=[
                node.model_copy(update={"module": f"block{block}.{node.module}"})
                for block in range(depth)
                for node in each.nodes
            ],
        )
        for each in PROGRAM.delegates
    ]
    return operators.ProgramOperators(delegates=delegates, portable=PROGRAM.portable)


@cache
def _snapshot(moment: str) -> dict[str, Any]:
    """Of this machine, taken once: looking at it takes longer than all the rest."""
    return take_snapshot(sample_s=0).as_json()


@dataclass(frozen=True)
class MadeRun:
    """One arm of a session. `matrix_speedup` is what SME2 is to bring for convolutions and products."""

    sme2: str = "off"
    session_id: str = "20260101T000000-aaaaaa"
    sequence: int = 0
    variant: str = "toy_cnn-fp32"
    platform: str = "linux"
    fidelity: Fidelity = "hardware"
    device: str = "a-cpu-0a1b2c"
    arch: str = "aarch64"
    threads: int = 1
    rounds: int = 6
    warmup: int = 1
    iterations: int = 3
    # Whether each round has an inference more than the one before, as where processes run for a time.
    uneven: bool = False
    matrix_speedup: float = 2.0
    # One inference of so many takes the other branch, from the last of them on; 0: none does.
    branch_every: int = 0
    # How many of the rounds have a trace; None: all.
    traced_rounds: int | None = None
    # Whether somebody looked at the machine before and after each round.
    watched: bool = True
    # Of the whole machine.
    slowness: float = 1.0
    # Of the processes without tracer, as on a machine whose clock rises after they ran.
    untraced_slowness: float = 1.0
    sqnr_db: float = 90.0
    pte_sha256: str = "a" * 64
    runner_sha256: str = "b" * 64
    executorch: str = "1.5.1"
    started_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    seed: int = 1
    sampled: bool = True
    paired: bool = True
    # How often the delegated blocks follow one another.
    depth: int = 1
    cpus: str = ""
    power_mode: str = ""
    # Of a session whose arms differ in something else than SME2: that, the letter of this one, and how many.
    factor: str | None = None
    arm: str = "a"
    arms: int = 2

    def __post_init__(self) -> None:
        # A session is of one model on one platform, unless the model is what differs.
        begun = self.session_id.partition(".")[0]
        of = self.factor or self.variant
        object.__setattr__(self, "session_id", f"{begun}.{of}.{self.platform}")

    @property
    def run_id(self) -> str:
        arm = f"-arm_{self.arm}" if self.factor else ""
        return f"{self.session_id}-{self.variant}-{self.platform}-sme2_{self.sme2}{arm}"

    def write(self, runs: Path) -> Path:
        """Writes the folder below `runs`."""
        folder = runs / self.run_id
        noise = random.Random(f"{self.seed}{self.sme2}{self.arm if self.factor else ''}")
        processes = []
        for round_index in range(self.rounds):
            sampled = ("kernels",) if self.sampled and round_index == 0 else ()
            traced = self.traced_rounds is None or round_index < self.traced_rounds
            for pass_kind in ("latency", *(("etdump",) if traced else ()), *sampled):
                directory = f"round_{round_index:02d}/{pass_kind}"
                iterations = self.iterations + (round_index if self.uneven else 0)
                self._write_process(folder / directory, pass_kind, noise, iterations)
                processes.append(
                    Process(
                        round=round_index,
                        order=0,
                        pass_kind=pass_kind,
                        directory=directory,
                        command=["sme2_runner"],
                        exit_code=0,
                        seconds=0.1,
                    )
                )
        (folder / OPERATORS_FILE).write_text(_deep(self.depth).to_json())
        self._manifest(folder, processes).write(folder)
        return folder

    def _write_process(self, directory: Path, pass_kind: str, noise: random.Random, iterations: int) -> None:
        directory.mkdir(parents=True)
        blocks, durations, inferences = [], [], []
        start_ns = 1_000_000
        for number in range(1, self.warmup + iterations + 1):
            branches = self.branch_every and number % self.branch_every == 0
            calls = self._branch(noise) if branches else self._calls(noise)
            execute_ns = sum(call.call_ns for call in calls) + 700
            blocks.append(inference(calls, execute_ns, start_ns))
            inferences.append((start_ns, calls))
            durations.append(execute_ns + 1500)
            start_ns += execute_ns + 2000
        if pass_kind == "latency":
            durations = [round(duration * self.untraced_slowness) for duration in durations]
        (directory / LOG_FILE).write_text("")
        etdump = samples = None
        if pass_kind == "kernels":
            text, count = self._samples(inferences[self.warmup :])
            (directory / SAMPLES_FILE).write_text(text)
            samples = {"file": SAMPLES_FILE, "bytes": len(text), "count": count, "dropped": 0}
        if pass_kind in TRACED_PASSES:
            data = trace_bytes(*blocks)
            (directory / "trace.etdump").write_bytes(data)
            etdump = {"file": "trace.etdump", "bytes": len(data)}
        result = {
            "schema": 1,
            "pass": pass_kind,
            "method": "forward",
            "threads": self.threads,
            "warmup_iterations": self.warmup,
            "iterations": iterations,
            "steady": None,
            "slowdown_percent": 0.0,
            "load_ns": 2_000_000,
            "warmup_ns": durations[: self.warmup],
            "iteration_ns": durations[self.warmup :],
            "peak_memory_bytes": 30_000_000,
            "cpu": self._cpu(),
            "etdump": etdump,
            "samples": samples,
            "inputs": [{"dtype": "float32", "shape": [1, 3, 8, 8]}],
            "outputs": [{"file": "output_0.npy", "dtype": "float32", "shape": [1, 10]}],
            "versions": {"executorch": self.executorch, "runner": "0.1.0", "compiler": "gcc 12.2.0"},
        }
        (directory / "result.json").write_text(json.dumps(result))

    def _samples(self, inferences: list[tuple[int, list[Delegate | Portable]]]) -> tuple[str, int]:
        """One sample in the middle of every delegated operator, in the kernel its name implies."""
        times, functions = [], []
        for start_ns, calls in inferences:
            for call in calls:
                if isinstance(call, Delegate):
                    now = start_ns
                    for name, duration_ns in call.operators:
                        times.append(now + duration_ns // 2)
                        functions.append(0 if "PF32" in name else 1)
                        now += duration_ns
                start_ns += call.call_ns
        words = [SME_WORD if function == 0 else SIMD_WORD for function in functions]
        library = "libexecutorch_backend_xnnpack.so"
        document = {
            "schema": 1,
            "arch": self.arch,
            "period_ns": 500_000,
            "dropped": 0,
            "missed": 0,
            "clock": {"trace_ns": 0, "monotonic_ns": 0, "lag_ns": 0},
            "threads": [{"tid": 1, "name": "sme2_runner", "main": True}],
            "functions": [
                {"library": library, "offset": 4096, "symbol": SME2_KERNEL},
                {"library": library, "offset": 8192, "symbol": None},
            ],
            "samples": {
                "time_ns": times,
                "thread": [0] * len(times),
                "function": functions,
                "address": [4100 if function == 0 else 8200 for function in functions],
                "word": words,
            },
        }
        return json.dumps(document), len(times)

    def _calls(self, noise: random.Random) -> list[Delegate | Portable]:
        return [
            self._delegate(FIRST_DELEGATE * self.depth, noise),
            Portable(PORTABLE, 20_000 + noise.randrange(900), 21_500),
            self._delegate(SECOND_DELEGATE * self.depth, noise),
        ]

    def _branch(self, noise: random.Random) -> list[Delegate | Portable]:
        return [self._delegate(BRANCH, noise), Portable(PORTABLE, 30_000, 31_500)]

    def _delegate(self, operators: tuple[tuple[str, int], ...], noise: random.Random) -> Delegate:
        measured = []
        for name, off_us in operators:
            speedup = self.matrix_speedup if "{}" in name and self.sme2 == "on" else 1.0
            us = round(off_us * self.slowness / speedup * noise.uniform(0.99, 1.01))
            measured.append((name.format("PF32" if self.sme2 == "on" else "F32"), 1000 * us))
        return Delegate(measured, sum(ns for _, ns in measured) + 3_210)

    def _cpu(self) -> dict[str, object]:
        arm = self.arch == "aarch64"
        return {
            "arch": self.arch,
            "features_seen": ["asimd", "sme", "sme2"] if arm else [],
            "features_masked": [] if self.sme2 == "on" or not arm else ["sme", "sme2"],
            "sme2": self.sme2,
            "sme2_usable": self.sme2 == "on",
            "sme_vector_bits": 512 if arm else None,
            "sve_vector_bits": None,
        }

    def _manifest(self, folder: Path, processes: list[Process]) -> Manifest:
        model, _, precision = self.variant.rpartition("-")
        machine = {"os": "Linux", "kernel": "6.1", "arch": self.arch, "cpu": "A CPU", "cores": 2}
        emulator = "QEMU 11.1" if self.fidelity == "emulated" else None
        return Manifest(
            run_id=self.run_id,
            session_id=self.session_id,
            sequence=self.sequence,
            experiment=self.factor if self.factor == "aa" else "arms" if self.factor else "sme2",
            arm=self.arm if self.factor else self.sme2,
            arms=self.arms if self.factor else 1 + self.paired,
            factor=None if self.factor == "aa" else self.factor or ("sme2" if self.paired else None),
            identity=Identity(
                variant=self.variant,
                model=model,
                precision=precision,
                platform=self.platform,
                sme2=self.sme2,
                threads=self.threads,
                pte_sha256=self.pte_sha256,
                runner_sha256=self.runner_sha256,
                cpus=self.cpus,
                power_mode=self.power_mode,
            ),
            context=Context(
                fidelity=self.fidelity,
                device=self.device,
                machine={**machine, "memory_bytes": None, "emulator": emulator},
                cpu=self._cpu(),
                load_before=0.1,
                load_after=0.2,
            ),
            info=Info(
                started_at=self.started_at.isoformat(),
                finished_at=(self.started_at + timedelta(seconds=9)).isoformat(),
                seed=self.seed,
                plan={"rounds": self.rounds, "warmup": self.warmup, "iterations": self.iterations},
                versions={"executorch": self.executorch, "compiler": "gcc 12.2.0"},
                agreements=[
                    {
                        "output": 0,
                        "sqnr_db": self.sqnr_db,
                        "max_abs_error": 0.01,
                        "cosine": 0.9999,
                        "equal_share": 0.5,
                        "top1_agreement": None,
                    }
                ],
                sqnr_db=self.sqnr_db,
                sqnr_threshold_db=40.0,
                arms_sqnr_db=90.0,
                output_sha256="c" * 64,
                steady=True,
                processes=processes,
                environment=[
                    Moment(round=0, moment=moment, snapshot=_snapshot(moment), flags=[])
                    for moment in ("before", "after")
                    if self.watched
                ],
                file_sha256={
                    str(path.relative_to(folder)): sha256_of_file(path)
                    for path in sorted(folder.rglob("*"))
                    if path.is_file()
                },
            ),
        )


def vouch_for_what_is_there(folder: Path) -> None:
    """Rewrites the hashes in the manifest, as if the session had written the files that are there now."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    hashes = manifest["info"]["file_sha256"]
    manifest["info"]["file_sha256"] = {name: sha256_of_file(folder / name) for name in hashes}
    path.write_text(json.dumps(manifest))


def run_with_trace(runs: Path, trace: Path) -> Path:
    """A run folder of one round whose trace is the given one."""
    execute_ns = execute_durations(read_etdump(trace)).tolist()
    folder = MadeRun(rounds=1, warmup=0, iterations=len(execute_ns), sampled=False).write(runs)
    directory = folder / "round_00" / "etdump"
    shutil.copyfile(trace, directory / "trace.etdump")
    result = json.loads((directory / "result.json").read_text())
    result["iteration_ns"] = [duration + 1500 for duration in execute_ns]
    (directory / "result.json").write_text(json.dumps(result))
    vouch_for_what_is_there(folder)
    return folder


def ingest(warehouse: Warehouse, *folders: Path) -> None:
    """Run folders into the warehouse, as the asset does it; publishing is left to the caller."""
    write_runs(warehouse, *map(RunReader, folders))
