"""Each way to fail has its exit code, a message that names the thing, and leaves no result file."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture
def refused(runner):
    """Checks that a run failed as it should: code, words, and neither a new nor an old result."""

    def check(run, code: int, *words: str) -> None:
        assert run.returncode == code, run.stderr
        assert run.error.startswith("sme2_runner: error: ")
        assert "; " in run.error
        for word in words:
            assert word in run.error
        assert list(runner.folder.glob("result.json*")) == []

    return check


@pytest.fixture
def stale_result(runner):
    (runner.folder / "result.json").write_text("{}")
    (runner.folder / "trace.etdump").write_text("old")
    (runner.folder / "recording.json").write_text("old")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--model"]),
        (["--bogus", "1"], ["--bogus"]),
        (["stray"], ["stray"]),
        (["--model"], ["--model", "no value"]),
        (["--model", "--pass"], ["--model", "no value"]),
        (["--model", "a", "--model", "b"], ["--model", "twice"]),
        (["--help", "--cpu"], ["--help", "alone"]),
    ],
)
def test_bad_flags_are_named(runner, refused, flags, words):
    refused(runner.call(*flags), 2, *words, "--help")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("iterations", 0),
        ("iterations", -3),
        ("iterations", "many"),
        ("iterations", "3x"),
        ("iterations", 99999999999999),
        ("warmup", -1),
        ("warmup", 1.5),
        ("threads", 0),
        ("warmup_ms", -1),
        ("warmup_ms", "soon"),
        ("timed_ms", 0.5),
        ("iterations_cap", 0),
        ("slowdown_percent", -1),
        ("slowdown_percent", 1000.5),
        ("slowdown_percent", "."),
        ("slowdown_percent", "1.2.3"),
        ("slowdown_percent", "5%"),
        ("slowdown_percent", "nan"),
        ("slowdown_percent", "inf"),
        ("slowdown_percent", "0x10"),
        ("kind", "fast"),
    ],
)
def test_a_value_out_of_range_is_named(runner, refused, programs, option, value):
    program = programs("two_inputs")
    flag = "pass" if option == "kind" else option.replace("_", "-")
    refused(
        runner.run(program.pte, program.inputs, **{option: value}), 2, f"--{flag}", f"'{value}'", "--help"
    )


def test_a_cap_below_the_iterations_is_refused(runner, refused, programs):
    program = programs("two_inputs")
    refused(
        runner.run(program.pte, program.inputs, iterations=5, iterations_cap=4),
        2,
        "--iterations-cap 4 is below --iterations 5",
        "--help",
    )


def test_the_trace_belongs_to_the_etdump_pass(runner, refused, programs):
    program = programs("two_inputs")
    with_trace = [*runner.flags(program.pte, program.inputs), "--etdump", "x"]
    refused(runner.call(*with_trace), 2, "--etdump")
    without_trace = runner.flags(program.pte, program.inputs, kind="etdump")[:-2]
    refused(runner.call(*without_trace), 2, "--etdump")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sample_period_us", 49),
        ("sample_period_us", 1_000_001),
        ("sample_period_us", "500us"),
        ("sample_capacity", 0),
        ("sample_capacity", 10_000_001),
    ],
)
def test_a_sampler_setting_out_of_range_is_named(runner, refused, programs, option, value):
    program = programs("two_inputs")
    run = runner.run(program.pte, program.inputs, kind="kernels", **{option: value})
    refused(run, 2, f"--{option.replace('_', '-')}", f"'{value}'", "--help")


@pytest.mark.parametrize(("kind", "flag"), [("kernels", "--samples"), ("kernels", "--etdump")])
def test_the_kernels_pass_wants_both_its_files(runner, refused, programs, kind, flag):
    program = programs("two_inputs")
    flags = runner.flags(program.pte, program.inputs, kind=kind)
    at = flags.index(flag)
    refused(runner.call(*flags[:at], *flags[at + 2 :]), 2, flag, "--pass kernels")


@pytest.mark.parametrize("kind", ["latency", "etdump"])
@pytest.mark.parametrize("flag", ["--samples", "--sample-period-us", "--sample-capacity"])
def test_sampling_belongs_to_the_kernels_pass(runner, refused, programs, kind, flag):
    program = programs("two_inputs")
    flags = [*runner.flags(program.pte, program.inputs, kind=kind), flag, "1000"]
    refused(runner.call(*flags), 2, flag, "--pass kernels")


@pytest.mark.parametrize("flag", ["--result", "--etdump"])
def test_two_files_of_one_name_are_refused(runner, refused, programs, flag):
    program = programs("two_inputs")
    flags = runner.flags(program.pte, program.inputs, kind="kernels")
    flags[flags.index("--samples") + 1] = flags[flags.index(flag) + 1]
    refused(runner.call(*flags), 2, flag, "--samples")


@pytest.mark.parametrize("value", ["maybe", "OFF", "0"])
def test_an_unknown_sme2_state_is_refused(runner, refused, programs, value):
    program = programs("two_inputs")
    refused(runner.run(program.pte, program.inputs, sme2=value), 2, "SME2_RUNNER_SME2", value)


def test_a_file_to_read_is_never_taken_for_a_result(runner, refused, programs, tmp_path):
    program = programs("two_inputs")
    model = tmp_path / "model.pte"
    model.write_bytes(program.pte.read_bytes())
    flags = runner.flags(model, program.inputs)
    flags[flags.index("--result") + 1] = model
    refused(runner.call(*flags), 2, "model.pte")
    assert model.read_bytes() == program.pte.read_bytes()


@pytest.mark.usefixtures("stale_result")
def test_a_missing_model_leaves_not_even_an_old_result(runner, refused, programs, tmp_path):
    refused(runner.run(tmp_path / "nope.pte", [], kind="kernels"), 3, "nope.pte")
    assert not (runner.folder / "trace.etdump").exists()
    assert not (runner.folder / "recording.json").exists()


@pytest.mark.parametrize("keep", [0, 3, 64, 0.3, 0.9, 0.999])
def test_a_truncated_model_is_refused(runner, refused, programs, tmp_path, keep):
    program = programs("two_inputs")
    whole = program.pte.read_bytes()
    broken = tmp_path / "broken.pte"
    broken.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    refused(runner.run(broken, program.inputs), 3, "broken.pte")


def test_a_foreign_file_is_no_model(runner, refused, programs, tmp_path):
    foreign = tmp_path / "foreign.pte"
    foreign.write_bytes(np.random.default_rng(1).bytes(5000))
    refused(runner.run(foreign, programs("two_inputs").inputs), 3, "foreign.pte")


def test_an_unknown_method_is_named_with_those_that_exist(runner, refused, programs):
    program = programs("two_inputs")
    flags = [*runner.flags(program.pte, program.inputs), "--method", "backward"]
    refused(runner.call(*flags), 3, "backward", "forward")


def test_too_few_and_too_many_inputs_are_counted(runner, refused, programs):
    program = programs("two_inputs")
    refused(runner.run(program.pte, program.inputs[:1]), 4, "2 input(s) and 1 were given")
    refused(runner.run(program.pte, [*program.inputs, program.inputs[0]]), 4, "2 input(s) and 3 were given")


@pytest.mark.parametrize(
    ("array", "given"),
    [
        (np.zeros((1, 3, 16, 15), np.float32), "float32 [1, 3, 16, 15]"),
        (np.zeros((1, 3, 16, 17), np.float32), "float32 [1, 3, 16, 17]"),
        (np.zeros((3, 16, 16), np.float32), "float32 [3, 16, 16]"),
        (np.zeros((1, 3, 16, 16), np.float64), "float64 [1, 3, 16, 16]"),
        (np.zeros((), np.float32), "float32 []"),
    ],
)
def test_an_input_that_does_not_fit_is_told_with_what_fits(runner, refused, programs, tmp_path, array, given):
    program = programs("two_inputs")
    np.save(tmp_path / "odd.npy", array)
    run = runner.run(program.pte, [tmp_path / "odd.npy", program.inputs[1]])
    refused(run, 4, "input 0", "float32 [1, 3, 16, 16]", given)


def npy(header: str | bytes, data: bytes = b"", *, version: int = 1, magic: bytes = b"\x93NUMPY") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return magic + bytes([version, 0]) + length + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
HOSTILE = {
    "empty": b"",
    "text": b"1.0 2.0 3.0\n",
    "bad magic": npy(GOOD, bytes(24), magic=b"\x93NUMPX"),
    "version 9": npy(GOOD, bytes(24), version=9),
    "no data": npy(GOOD),
    "too little data": npy(GOOD, bytes(23)),
    "too much data": npy(GOOD, bytes(25)),
    "big endian": npy(GOOD.replace("<f4", ">f4"), bytes(24)),
    "fortran order": npy(GOOD.replace("False", "True"), bytes(24)),
    "complex": npy(GOOD.replace("<f4", "<c8"), bytes(48)),
    "object": npy(GOOD.replace("<f4", "|O"), bytes(48)),
    "structured": npy(GOOD.replace("'<f4'", "[('a', '<f4')]"), bytes(24)),
    "endless shape": npy(GOOD.replace("(2, 3)", "(2147483647, 2147483647, 2147483647)"), bytes(24)),
    "overflowing dimension": npy(GOOD.replace("(2, 3)", "(18446744073709551618, 3)"), bytes(24)),
    "negative dimension": npy(GOOD.replace("(2, 3)", "(-2, -3)"), bytes(24)),
    "many dimensions": npy(GOOD.replace("(2, 3)", "(" + "1, " * 5000 + ")"), bytes(4)),
    "no shape": npy("{'descr': '<f4', 'fortran_order': False}", bytes(24)),
    "a key twice": npy(GOOD.replace("}", "'shape': (6,)}"), bytes(24)),
    "an unknown key": npy(GOOD.replace("}", "'x': 1}"), bytes(24)),
    "words after it": npy(GOOD + " import os", bytes(24)),
    "an open dict": npy(GOOD[:-1], bytes(24)),
    "an open quote": npy("{'descr", bytes(24)),
    "zeros in it": npy(b"\0" * 64, bytes(24)),
    "huge header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + GOOD.encode() + bytes(24),
    "header past the end": b"\x93NUMPY\x01\x00\xff\x00" + GOOD.encode(),
    "header length cut": b"\x93NUMPY\x02\x00\xff\x00\x00",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_input_file_is_refused(runner, refused, programs, tmp_path, content):
    path = tmp_path / "hostile.npy"
    path.write_bytes(content)
    refused(runner.run(programs("logarithm").pte, [path]), 4, "hostile.npy")


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_the_format_are_read(runner, programs, tmp_path, version):
    data = np.arange(1, 7, dtype="<f4")
    path = tmp_path / "input.npy"
    path.write_bytes(npy(GOOD, data.tobytes(), version=version))
    run = runner.run(programs("logarithm").pte, [path])
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(run.output(0).ravel(), np.log(data), rtol=1e-5)


def test_a_missing_input_file_is_named(runner, refused, programs, tmp_path):
    refused(runner.run(programs("logarithm").pte, [tmp_path / "gone.npy"]), 4, "gone.npy")
    refused(runner.run(programs("logarithm").pte, [tmp_path]), 4, "not a regular file")


def test_an_inference_that_fails_is_told(runner, refused, programs, tmp_path):
    np.save(tmp_path / "index.npy", np.array([1, 99, 3]))
    refused(runner.run(programs("lookup").pte, [tmp_path / "index.npy"]), 5, "inference failed")


@pytest.mark.parametrize("name", ["logarithm", "logarithm_fp16"])
@pytest.mark.parametrize(("value", "kind"), [(-1.0, "NaN"), (0.0, "infinity")])
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.usefixtures("stale_result")
def test_a_non_finite_output_is_refused(runner, refused, programs, tmp_path, name, value, kind, warmup):
    program = programs(name)
    array = np.load(program.inputs[0])
    array[1, 2] = value
    np.save(tmp_path / "bad.npy", array)
    run = runner.run(program.pte, [tmp_path / "bad.npy"], kind="etdump", warmup=warmup)
    refused(run, 6, "output 0", "1 of 6", kind)
    assert not (runner.folder / "trace.etdump").exists()


@pytest.mark.parametrize("flag", ["--result", "--etdump", "--samples"])
def test_a_file_that_cannot_be_written_is_named(runner, refused, programs, tmp_path, flag):
    program = programs("logarithm")
    flags = runner.flags(program.pte, program.inputs, kind="kernels")
    flags[flags.index(flag) + 1] = tmp_path / "no" / "such" / "folder.x"
    refused(runner.call(*flags), 7, "folder.x")


def test_an_outputs_folder_that_is_a_file_is_named(runner, refused, programs):
    (runner.folder / "outputs").write_text("in the way")
    program = programs("logarithm")
    refused(runner.run(program.pte, program.inputs), 7, "outputs")


def test_a_result_that_is_a_folder_is_named(runner, programs):
    (runner.folder / "result.json").mkdir()
    program = programs("logarithm")
    run = runner.run(program.pte, program.inputs)
    assert run.returncode == 7
    assert "it is a directory" in run.error


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="preloads a library, needs cc"
)
def test_a_tracer_that_recorded_nothing_is_told(runner, refused, programs, tmp_path):
    """The wheels before 1.5.1 have no event tracer: a preloaded library makes this one look like them."""
    source = tmp_path / "silent.c"
    source.write_text(
        "unsigned long _ZN10executorch6etdump9ETDumpGen14get_num_blocksEv(void *g) { return g == 0; }\n"
    )
    library = tmp_path / "silent.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    program = programs("logarithm")
    run = runner.call(*runner.flags(program.pte, program.inputs, kind="etdump"), LD_PRELOAD=str(library))
    refused(run, 8, "0 block(s) for 2 inference(s)", "event tracer")
    assert not (runner.folder / "trace.etdump").exists()
