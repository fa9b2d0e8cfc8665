"""Runs of any operators, written straight into the tables, with times and sources that the test knows.

For what a run folder cannot be made to hold easily: every data type, source, sample and platform. Views
and everything after them are the real code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from sme2_assets.analysis.categories import classify
from sme2_assets.report.explain import Explanation, explain
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import with_named_times
from sme2_assets.warehouse.schema import (
    INFERENCES,
    KERNEL_SAMPLES,
    OPERATORS,
    REGISTERED_KERNELS,
    RUNS,
    TIMELINE,
    Table,
)
from sme2_assets.warehouse.store import Rows
from sme2_assets_tests.warehouse.newest import newest_session

DELEGATE_OVERHEAD_NS = 3_000
FRAMEWORK_OVERHEAD_NS = 2_000


@dataclass(frozen=True)
class Op:
    """One operator: its name and time, and what the export and the sampler told about it."""

    name: str
    us: int
    delegate: int | None = 0
    facts: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    sme_samples: int = 0
    # Rows of kernel_samples beside these.
    more_samples: Sequence[dict[str, Any]] = ()

    @property
    def backend(self) -> str:
        return "portable" if self.delegate is None else "xnnpack"


@dataclass(frozen=True)
class OperatorRun:
    """One arm of a session with these operators, in the order they run."""

    ops: Sequence[Op]
    sme2: str = "on"
    variant: str = "made-fp32"
    platform: str = "linux"
    fidelity: str = "hardware"
    session_id: str = "20260101T000000-aaaaaa"
    experiment: str = "sme2"
    rounds: int = 2
    iterations: int = 3
    features: Sequence[str] = ("asimd",)
    pte_sha256: str = "a" * 64
    started_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    sequence: int | None = None
    device: str | None = None
    cpus: str | None = None
    power_mode: str | None = None
    method: str | None = None
    threads: int = 1
    sme_vector_bits: int | None = None
    # Rows of registered_kernels.
    registered: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        # A session is of one model on one platform.
        begun = self.session_id.partition(".")[0]
        object.__setattr__(self, "session_id", f"{begun}.{self.variant}.{self.platform}")

    @property
    def run_id(self) -> str:
        return f"{self.session_id}-{self.variant}-{self.platform}-sme2_{self.sme2}"

    @property
    def inference_ns(self) -> int:
        return (
            sum(1000 * op.us for op in self.ops)
            + self.delegates * DELEGATE_OVERHEAD_NS
            + FRAMEWORK_OVERHEAD_NS
        )

    @property
    def delegates(self) -> int:
        return len({op.delegate for op in self.ops} - {None})

    def write(self, warehouse: Warehouse) -> None:
        write_runs(warehouse, self)

    def parts(self) -> list[Rows]:
        """Its rows of each table."""
        keys = {
            "variant": self.variant,
            "target": f"{self.platform}-sme2_{self.sme2}",
            "run_id": self.run_id,
        }
        processes = [(r, i) for r in range(self.rounds) for i in range(self.iterations)]
        timeline = [
            {**row, "round": r, "iteration": i} for r, i in processes for row in self._rows_of_an_inference()
        ]
        inferences = [
            {"pass": kind, "round": r, "iteration": i, "is_warmup": False, "duration_ns": self.inference_ns}
            | ({"execute_ns": self.inference_ns} if kind == "etdump" else {})
            for kind in ("latency", "etdump")
            for r, i in processes
        ]
        tables: dict[Table, list[dict[str, Any]]] = {
            TIMELINE: timeline,
            INFERENCES: inferences,
            OPERATORS: [row for row in self._operator_rows() if "attribution" in row],
            KERNEL_SAMPLES: self._sample_rows(),
            REGISTERED_KERNELS: list(self.registered),
            RUNS: [self._run()],
        }
        return [(table, _frame(table, rows, self.fidelity), keys) for table, rows in tables.items()]

    def _identity(self) -> dict[str, Any]:
        model, _, precision = self.variant.rpartition("-")
        return {
            "model": model,
            "precision": precision,
            "platform": self.platform,
            "sme2": self.sme2,
            "threads": self.threads,
            "fidelity": self.fidelity,
            "arch": "x86_64" if self.fidelity == "reference" else "aarch64",
        }

    def _run(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "session_id": self.session_id,
            "experiment": self.experiment,
            "arm": self.sme2,
            "started_at": self.started_at,
            "finished_at": self.started_at,
            "rounds": self.rounds,
            "iterations": self.iterations,
            "warmup": 0,
            "pte_sha256": self.pte_sha256,
            "executorch_version": "1.5.1",
            "cpu_features_seen": list(self.features),
            **{
                name: getattr(self, name)
                for name in ("sequence", "device", "cpus", "power_mode", "method", "sme_vector_bits")
            },
        }

    def _places(self) -> list[int]:
        counts: dict[int | None, int] = {}
        places = []
        for op in self.ops:
            places.append(counts.get(op.delegate, 0))
            counts[op.delegate] = places[-1] + 1
        return places

    def _operator_rows(self) -> list[dict[str, Any]]:
        return [
            {"backend": op.backend, "delegate": op.delegate, "position": position, **op.facts}
            for op, position in zip(self.ops, self._places(), strict=True)
        ]

    def _rows_of_an_inference(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        start_ns = 500
        for op, position in zip(self.ops, self._places(), strict=True):
            facts = classify(op.name, "portable" if op.delegate is None else "xnnpack")
            rows.append(
                {
                    "kind": "operator",
                    "backend": op.backend,
                    "delegate": op.delegate,
                    "position": position,
                    "name": op.name,
                    "op_type": facts.op_type,
                    "data_type": facts.dtype,
                    "category": facts.category.value,
                    "known": facts.known,
                    "start_ns": start_ns,
                    "duration_ns": 1000 * op.us,
                    "sme2_evidence": facts.sme2_evidence,
                }
            )
            start_ns += 1000 * op.us
        overheads = [("delegate_overhead", number, DELEGATE_OVERHEAD_NS) for number in range(self.delegates)]
        for kind, delegate, duration_ns in [*overheads, ("framework_overhead", None, FRAMEWORK_OVERHEAD_NS)]:
            rows.append(
                {
                    "kind": kind,
                    "backend": "framework",
                    "delegate": delegate,
                    "name": kind,
                    "known": True,
                    "duration_ns": duration_ns,
                    "sme2_evidence": "none",
                }
            )
        return [{**row, **self._identity(), "pass": "etdump", "is_warmup": False} for row in rows]

    def _sample_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "round": 0,
                "kind": "operator",
                "backend": op.backend,
                "delegate": op.delegate,
                "position": position,
                "thread_kind": "main",
                "near_boundary_samples": 0,
                **row,
            }
            for op, position in zip(self.ops, self._places(), strict=True)
            for row in (
                {"isa": "sme2", "unit": "SME", "samples": op.sme_samples},
                {"unit": "SIMD/FP", "samples": op.samples - op.sme_samples},
                *op.more_samples,
            )
            if row["samples"]
        ]


def _frame(table: Table, rows: list[dict[str, Any]], fidelity: str) -> pd.DataFrame:
    columns = [column.name for column in table.columns]
    # As objects: whole columns of nothing, and columns with gaps, keep what they hold.
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return with_named_times(frame, table, fidelity)


def write_runs(warehouse: Warehouse, *runs: OperatorRun) -> None:
    """Stores runs together, which takes little longer than storing one of them."""
    parts = [part for run in runs for part in run.parts()]
    warehouse.write_together(parts, [run.run_id for run in runs])


def source(module: str | None, kind: str, line: int = 1, **facts: Any) -> dict[str, Any]:
    """What attribution tells of an operator at one place of the model."""
    return {
        "attribution": "aligned",
        "node_kind": kind,
        "edge_ops": facts.pop("edge_ops", []),
        "module": module,
        "module_type": kind.removeprefix("XNN"),
        "source": f"model.py:{line}",
        "code": "x = layer(x)",
        **facts,
    }


INSERTED = {"attribution": "inserted", "node_kind": "XNNStaticTranspose", "edge_ops": []}

# A small network, with SME2 off and on: an SME2 kernel for the dense convolution and the linear layer.
# The second line of each is what is missed, the portable one what splits the delegates.
CNN_MACS = 9_000_000


def cnn(sme2: str) -> list[Op]:
    on = sme2 == "on"
    packed = "PF32" if on else "F32"
    seen = {"samples": 40, "sme_samples": 38} if on else {"samples": 40}
    return [
        Op("Transpose (ND, X32) #1", 20, 0, INSERTED),
        Op(
            f"Convolution (NHWC, {packed}) IGEMM #1",
            200 if on else 600,
            0,
            source(
                "features.0.conv",
                "XNNConv2d",
                10,
                macs=CNN_MACS,
                groups=1,
                input_shape="1x32x32x16",
                output_shape="1x32x32x61",
            ),
            **seen,
        ),
        Op(
            "Convolution (NHWC, F32) DWConv #1",
            150,
            0,
            source(
                "features.1.conv",
                "XNNDepthwiseConv2d",
                11,
                macs=1_000_000,
                groups=32,
                input_shape="1x32x32x32",
            ),
            samples=30,
        ),
        Op("HardSwish (NC) #1", 30, 0, source("features.1.act", "XNNHardswish", 12)),
        Op("Transpose (ND, X32) #2", 40, 0, INSERTED),
        Op("native_call_mean.out", 60, None, source("", "aten::mean.out", 13) | {"attribution": "exact"}),
        Op(
            f"Fully Connected (NC, {packed}) GEMM #1",
            50 if on else 100,
            1,
            source(
                "head",
                "XNNFullyConnected",
                14,
                macs=2_000_000,
                input_shape="1x2000",
                output_shape="1x1000",
            ),
            **seen,
        ),
        Op("Softmax (NC, F32) #1", 5, 1, source("", "XNNSoftmax", 15)),
    ]


# Held until the process ends: the warehouse below is made once for all tests.
_FOLDER = tempfile.TemporaryDirectory()


@cache
def made_warehouse() -> Warehouse:
    """The network as a pair on hardware and emulated, and as a baseline alone. Only for reading.

    made-fp32 is the pair; alone-fp32, twin-fp32 (with an emulated run that lends its evidence) and
    capable-fp32 (of a CPU with SME2) are the baselines.
    """
    warehouse = Warehouse(Path(_FOLDER.name) / "warehouse")
    emulated = OperatorRun([], platform="emulated", fidelity="emulated", session_id="e")
    pair = [
        run
        for sme2 in ("off", "on")
        for run in (
            OperatorRun(cnn(sme2), sme2, features=("sme2",)),
            replace(emulated, ops=cnn(sme2), sme2=sme2),
        )
    ]
    alone = OperatorRun(cnn("off"), "off", variant="alone-fp32", session_id="s")
    write_runs(
        warehouse,
        *pair,
        alone,
        replace(alone, variant="twin-fp32"),
        replace(emulated, ops=cnn("on"), variant="twin-fp32"),
        replace(alone, variant="capable-fp32", features=("asimd", "sme2")),
    )
    warehouse.publish()
    return warehouse


@cache
def explained(variant: str, platform: str) -> Explanation:
    return explain(made_warehouse(), newest_session(made_warehouse(), variant, platform))
