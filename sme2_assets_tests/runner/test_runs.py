"""The runner does what its result says: real programs, real kernels, outputs against eager torch."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.etdump import EventKind, read_etdump

TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "int64": 0}


def traced_inferences(trace: Path) -> int:
    """Inferences in the trace; that ExecuTorch's own reader sees the same is tested where ours is."""
    return int((read_etdump(trace).kind == EventKind.METHOD_EXECUTE).sum())


@pytest.mark.parametrize(
    "name",
    [
        "two_inputs",
        "two_inputs_fp16",
        "portable",
        "logarithm",
        "lookup",
        "channels_last",
        "int8",
        "int8_portable",
    ],
)
def test_the_outputs_equal_those_of_eager_torch(runner, programs, name):
    program = programs(name)
    run = runner.run(program.pte, program.inputs)
    assert [output.file for output in run.result.outputs] == [
        f"output_{i}.npy" for i in range(len(program.expected))
    ]
    for i, expected in enumerate(program.expected):
        output = run.output(i)
        assert output.dtype == expected.dtype
        assert run.result.outputs[i].shape == output.shape == expected.shape
        # A quantised value may fall on the other side of a rounding step.
        tolerance = 0.02 if name.startswith("int8") else TOLERANCE[str(expected.dtype)]
        np.testing.assert_allclose(output, expected, rtol=tolerance, atol=tolerance)


def test_a_quantised_operator_outside_the_delegate_finds_its_kernel(runner, programs):
    program = programs("int8_portable")
    run = runner.run(program.pte, program.inputs, kind="etdump")
    assert run.returncode == 0, run.stderr
    trace = (runner.folder / "trace.etdump").read_bytes()
    assert b"native_call_quantize_per_tensor.out" in trace
    assert b"native_call_dequantize_per_channel.out" in trace


def test_the_result_tells_the_whole_run(runner, programs):
    program = programs("two_inputs")
    run = runner.run(program.pte, program.inputs, warmup=3, iterations=5, threads=2)
    result = run.result
    assert (result.pass_kind, result.method, result.threads) == ("latency", "forward", 2)
    assert (len(result.warmup_ns), len(result.iteration_ns)) == (3, 5)
    assert all(duration > 0 for duration in (*result.warmup_ns, *result.iteration_ns, result.load_ns))
    assert result.peak_memory_bytes > 1_000_000
    assert result.etdump is None
    assert (result.steady, result.slowdown_percent) == (None, 0)
    assert "SLOWED" not in run.stderr
    assert [(t.dtype, t.shape) for t in result.inputs] == [("float32", (1, 3, 16, 16)), ("float32", (1, 10))]
    assert result.versions.runner == "0.1.0"
    assert result.versions.executorch.startswith("1.")
    assert len(run.stdout.splitlines()) == 1


def test_the_output_depends_on_each_input_file(runner, programs):
    program = programs("two_inputs")
    first = runner.run(program.pte, program.inputs).output(0)
    for changed in range(2):
        inputs = list(program.inputs)
        other = runner.folder / f"other_{changed}.npy"
        np.save(other, np.load(inputs[changed]) * 2 + 1)
        inputs[changed] = other
        assert np.abs(runner.run(program.pte, inputs).output(0) - first).max() > 1e-3


@pytest.mark.parametrize("name", ["portable", "in_place", "in_place_unplanned"])
def test_many_inferences_give_what_one_gives(runner, programs, name):
    """An inference may reuse or change an input's bytes: each must start from the given input."""
    program = programs(name)
    one = runner.run(program.pte, program.inputs, warmup=0, iterations=1).output(0)
    many = runner.run(program.pte, program.inputs, warmup=4, iterations=9).output(0)
    np.testing.assert_array_equal(one, many)


def test_the_trace_has_a_block_for_each_measured_inference_and_none_of_warm_up(runner, programs):
    program = programs("two_inputs")
    run = runner.run(program.pte, program.inputs, kind="etdump", warmup=2, iterations=5)
    trace = runner.folder / "trace.etdump"
    assert run.result.etdump is not None
    assert (run.result.etdump.file, run.result.etdump.bytes) == (trace.name, trace.stat().st_size)
    assert traced_inferences(trace) == 5
    assert (run.result.warmup_iterations, run.result.traced_warmup) == (2, 0)


def test_sme2_off_is_told_and_leaves_no_sme_visible(runner, programs):
    program = programs("two_inputs")
    cpu = runner.run(program.pte, program.inputs, sme2="off").result.cpu
    assert (cpu.sme2, cpu.sme2_usable) == ("off", False)
    assert set(cpu.features_masked) == {name for name in cpu.features_seen if name.startswith("sme")}


def test_the_features_seen_are_those_of_the_kernel(runner):
    if sys.platform != "linux":
        pytest.skip("the kernel of this system has no list of them")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    # AArch64 alone has that line, and features that the runner knows.
    features = next((line.split(":", 1)[1].split() for line in lines if line.startswith("Features")), [])
    assert bool(features) == (platform.machine() == "aarch64")
    for sme2 in ("on", "off"):
        cpu = json.loads(runner.call("--cpu", SME2_RUNNER_SME2=sme2).stdout)
        assert sorted(cpu["features_seen"]) == sorted(features)


def test_a_bundle_of_binary_and_libraries_runs_elsewhere(runner, runner_binary, programs, tmp_path):
    """The libraries beside the binary are the ones it takes."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    shutil.copy2(runner_binary.path, bundle)
    for library in runner_binary.library_dir.glob("libexecutorch*"):
        if "openvino" not in library.name:
            shutil.copy2(library, bundle)
    program = programs("two_inputs")
    bundled = type(runner)(bundle / runner_binary.path.name, tmp_path)
    assert bundled.run(program.pte, program.inputs).returncode == 0
    for library in bundle.glob("libexecutorch_etdump*"):
        library.write_bytes(b"not a library")
    assert bundled.run(program.pte, program.inputs).returncode == 127


def test_a_strange_file_name_comes_back_as_valid_json(runner, programs):
    program = programs("two_inputs")
    name = 'tr"a\\ce\n\u00e9.etdump'
    flags = runner.flags(program.pte, program.inputs, kind="etdump")
    flags[-1] = runner.folder / name
    run = runner.call(*flags)
    assert run.result.etdump is not None
    assert run.result.etdump.file == name


def test_help_and_version_answer_and_leave(runner):
    assert "--iterations" in runner.call("--help").stdout
    assert runner.call("--version").stdout.startswith("sme2_runner 0.1.0 (executorch ")


def test_the_peak_memory_is_not_that_of_the_process_which_starts_it(runner, programs):
    program = programs("two_inputs")
    large = bytearray(b"x") * 400_000_000
    run = runner.run(program.pte, program.inputs)
    assert run.result.peak_memory_bytes < len(large) / 4
