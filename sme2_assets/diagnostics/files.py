"""Whether a file can be relied on: a program, a trace, a Perfetto trace, an experiment file."""

from __future__ import annotations

import struct
from pathlib import Path

from sme2_assets.diagnostics.evidence_checks import require, trace_steps
from sme2_assets.diagnostics.steps import Checkup
from sme2_assets.exchange.perfetto import faults_of_trace, read_packets
from sme2_assets.store import Store

_PTE_IDENTIFIER, _PTE_HEADER = b"ET12", b"eh00"


def validate_trace(path: Path) -> Checkup:
    made = Checkup(str(path), "ETDump")
    trace_steps(made, path)
    return made


def validate_perfetto(path: Path) -> Checkup:
    made = Checkup(str(path), "Perfetto trace")
    with made.step("trace") as step:
        step.detail = check_perfetto(path)
    return made


def validate_program(path: Path) -> Checkup:
    made = Checkup(str(path), "ExecuTorch program")
    with made.step("format") as step:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(64)
            content = head + file.read()
        require(
            head[4:8] == _PTE_IDENTIFIER,
            "It is not an ExecuTorch program: it lacks the identifier ET12.",
            "Give the .pte file that the export wrote.",
        )
        step.detail = f"{size:,} bytes"
        if head[8:12] == _PTE_HEADER:
            length, program, segments = struct.unpack_from("<IQQ", head, 12)
            data = struct.unpack_from("<Q", head, 32)[0] if length >= 32 else 0
            require(
                program <= size and segments + data <= size,
                f"It is cut off: {size:,} of {max(program, segments + data):,} bytes are there.",
                "Copy or export it again.",
            )
    if made.ok:
        with made.step("delegates") as step:
            if b"XnnpackBackend" in content:
                step.detail = "it has parts for XNNPACK"
            else:
                step.note(
                    "Nothing in it is for XNNPACK, and only XNNPACK has SME2 kernels.",
                    "Export it with the XNNPACK partitioner.",
                )
    return made


def validate_experiment(path: Path, store: Store) -> Checkup:
    """What `sme2 config check` looks at."""
    # Imported only for such a file: it brings in models and devices.
    from sme2_assets.defs.resources import Lab
    from sme2_assets.diagnostics.experiment import check_experiment
    from sme2_assets.experiments.load import load
    from sme2_assets.experiments.plan import planned

    made = Checkup(str(path), "experiment file")
    with made.step("content"):
        lab = Lab(data_root=str(store.root))
        loaded = load(path)
        made.steps += check_experiment(loaded, planned(loaded, lab), lab).steps
    return made


def check_perfetto(path: Path) -> str:
    try:
        events, faults = faults_of_trace(read_packets(path))
    except ValueError as error:
        events, faults = 0, [str(error)]
    require(not faults, f"{len(faults)} faults, the first: {faults[0] if faults else ''}", "Export again.")
    return f"{events:,} events, all slices inside one another"
