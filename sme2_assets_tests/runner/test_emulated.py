"""SME2 without SME2 hardware: the same binary under QEMU takes SME2 kernels, and none when masked."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.evidence.result import CpuFacts
from sme2_assets.targets.shapes import DEFAULT, emulated_cpu


@dataclass(frozen=True)
class Emulated:
    command: list[str]

    def run(self, *flags: object, sme2: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *map(str, flags)],
            env={**os.environ, "SME2_RUNNER_SME2": sme2},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
        )

    def cpu(self, sme2: str) -> CpuFacts:
        return CpuFacts.model_validate_json(self.run("--cpu", sme2=sme2).stdout)


@pytest.fixture
def emulated(emulated_command: list[str]) -> Emulated:
    return Emulated(emulated_command)


def test_an_emulated_cpu_offers_sme2_until_it_is_masked(emulated):
    on, off = emulated.cpu("on"), emulated.cpu("off")
    assert on.sme2_usable
    assert on.features_masked == ()
    assert on.sme_vector_bits is not None
    assert not off.sme2_usable
    assert off.features_seen == on.features_seen
    assert {"sme", "sme2"} <= set(off.features_masked)


@pytest.mark.parametrize("device", ["emulated:m4", "emulated:c1:256", "emulated:max:2048"])
def test_an_emulated_cpu_has_the_vectors_that_its_name_says(emulated: Emulated, device: str):
    cpu = emulated_cpu(device)
    command = [cpu.option if word == DEFAULT.option else word for word in emulated.command]
    facts = Emulated(command).cpu("on")
    assert facts.sme_vector_bits == cpu.vector_bits
    assert facts.sve_vector_bits == {"m4": None, "c1": 128, "max": 512}[cpu.shape]
    assert ("sve" in facts.features_seen) == (cpu.shape != "m4")
    # All that SVE has may be used in streaming mode by `max` and `c1` alone.
    assert ("smefa64" in facts.features_seen) == (cpu.shape != "m4")


@pytest.mark.parametrize(
    ("name", "kernel"), [("two_inputs", b"PF32"), ("two_inputs_fp16", b"PF16"), ("int8", b"PQS8")]
)
def test_sme2_kernels_run_unmasked_and_none_masked(emulated, runner, programs, name, kernel):
    program = programs(name)
    outputs = {}
    for sme2 in ("on", "off"):
        done = emulated.run(*runner.flags(program.pte, program.inputs, kind="etdump"), sme2=sme2)
        assert done.returncode == 0, done.stderr
        trace = Path(runner.folder / "trace.etdump").read_bytes()
        assert (kernel in trace) == (sme2 == "on")
        outputs[sme2] = np.load(runner.folder / "outputs" / "output_0.npy")
    np.testing.assert_allclose(outputs["on"], outputs["off"], rtol=5e-3, atol=5e-3)
