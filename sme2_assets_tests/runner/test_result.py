"""Reading back what the runner said: the result file, and the words for each way to fail."""

from __future__ import annotations

import copy
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.result import Conditions, CpuFacts, RunnerResult, SamplesFact
from sme2_assets.runner.build import NATIVE_DIR
from sme2_assets.runner.failures import EXIT_MEANINGS, runner_failure

GOOD: dict[str, Any] = {
    "schema": 2,
    "pass": "etdump",
    "method": "forward",
    "threads": 1,
    "warmup_iterations": 1,
    "warmup_stride": 1,
    "warmup_wall_ns": 6,
    "warmup_traced": False,
    "iterations": 2,
    "timed_wall_ns": 9,
    "steady": None,
    "slowdown_percent": 0,
    "load_ns": 10,
    "warmup_ns": [5],
    "iteration_ns": [3, 4],
    "iteration_cycles": [30, None],
    "peak_memory_bytes": 4096,
    "cpu": {
        "arch": "aarch64",
        "features_seen": ["asimd", "sme", "sme2"],
        "features_masked": ["sme", "sme2"],
        "sme2": "off",
        "sme2_usable": False,
        "sme_vector_bits": 512,
        "sve_vector_bits": None,
    },
    "etdump": {"file": "trace.etdump", "bytes": 7},
    "samples": None,
    "inputs": [{"dtype": "float32", "shape": [1, 3]}],
    "outputs": [{"file": "output_0.npy", "dtype": "float32", "shape": []}],
    "versions": {"executorch": "1.5.1", "runner": "0.1.0", "compiler": "gcc 12.2.0"},
}


# What the first runners did not tell yet.
ADDED_LATER = ("steady", "slowdown_percent", "samples")
# What came with version 2.
BY_TIME = ("warmup_stride", "warmup_wall_ns", "warmup_traced", "timed_wall_ns", "iteration_cycles")

SAMPLED = {
    **GOOD,
    "pass": "kernels",
    "samples": {"file": "samples.json", "bytes": 90, "count": 5, "dropped": 2},
}


def written(folder: Path, document: object) -> Path:
    path = folder / "result.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_good_result_is_read(tmp_path):
    result = RunnerResult.read(written(tmp_path, GOOD))
    assert result.iteration_ns == (3, 4)
    assert result.cpu.features_masked == ("sme", "sme2")
    assert result.outputs[0].shape == ()
    assert result.etdump is not None
    assert result.steady is None
    assert result.slowdown_percent == 0.0


@pytest.mark.parametrize(("warmup", "steady"), [(1, None), (1, False), (10, True), (12, False)])
def test_how_the_warm_up_ended_is_read(tmp_path, warmup, steady):
    document = {**GOOD, "steady": steady, "warmup_iterations": warmup, "warmup_ns": [5] * warmup}
    assert RunnerResult.read(written(tmp_path, document)).steady is steady


@pytest.mark.parametrize("percent", [0, 0.5, 400, 1000])
def test_a_slowdown_is_read(tmp_path, percent):
    assert (
        RunnerResult.read(written(tmp_path, {**GOOD, "slowdown_percent": percent})).slowdown_percent
        == percent
    )


def test_a_result_of_an_older_runner_stays_readable(tmp_path):
    older = {k: v for k, v in GOOD.items() if k not in (*ADDED_LATER, *BY_TIME)} | {"schema": 1}
    result = RunnerResult.read(written(tmp_path, older))
    assert (result.steady, result.slowdown_percent, result.samples) == (None, 0.0, None)
    assert (result.warmup_wall_ns, result.timed_wall_ns, result.iteration_cycles) == (None, None, None)
    assert result.traced_warmup == 1, "its warm-up was in the trace"


@pytest.mark.parametrize(
    ("warmups", "stride", "kept"), [(0, 1, 0), (1, 1, 1), (7, 4, 2), (8, 4, 2), (9, 4, 3)]
)
def test_a_long_warm_up_is_told_in_part(tmp_path, warmups, stride, kept):
    document = {**GOOD, "warmup_iterations": warmups, "warmup_stride": stride, "warmup_ns": [5] * kept}
    assert RunnerResult.read(written(tmp_path, document)).traced_warmup == 0
    with pytest.raises(EvidenceError, match="warmup_ns has"):
        RunnerResult.read(written(tmp_path, {**document, "warmup_ns": [5] * (kept + 1)}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 0),
        (("schema",), True),
        (("pass",), "kernels"),
        (("threads",), 0),
        (("threads",), True),
        (("threads",), "1"),
        (("iterations",), 3),
        (("iterations",), 2.0),
        (("warmup_ns",), []),
        (("warmup_stride",), 0),
        (("warmup_wall_ns",), -1),
        (("warmup_traced",), None),
        (("iteration_cycles",), [1]),
        (("iteration_cycles",), [1, 0]),
        (("iteration_cycles",), [1, 2.5]),
        (("iteration_ns",), [3, -4]),
        (("iteration_ns",), None),
        (("load_ns",), 1.5),
        (("steady",), 1),
        (("steady",), "yes"),
        # One warm-up inference shows nothing.
        (("steady",), True),
        (("slowdown_percent",), None),
        (("slowdown_percent",), True),
        (("slowdown_percent",), "5"),
        (("slowdown_percent",), -0.1),
        (("slowdown_percent",), 1000.1),
        (("etdump",), None),
        (("etdump", "bytes"), 0),
        (("etdump", "file"), "../trace.etdump"),
        (("outputs",), {}),
        (("outputs", 0, "file"), "/etc/passwd"),
        (("outputs", 0, "dtype"), "complex64"),
        (("inputs", 0, "shape"), [-1]),
        (("inputs", 0, "file"), "input.npy"),
        (("cpu",), None),
        (("cpu", "sme2"), "maybe"),
        (("cpu", "sme2"), "on"),
        (("cpu", "sme2_usable"), True),
        (("cpu", "sme2_usable"), 0),
        (("cpu", "features_masked"), ["sme", "sme2", "sve"]),
        (("cpu", "features_masked"), ["sme2"]),
        (("cpu", "sme_vector_bits"), 0),
        (("versions", "executorch"), ""),
        (("extra",), 1),
    ],
)
def test_a_result_that_does_not_add_up_is_refused(tmp_path, path, value):
    document = copy.deepcopy(GOOD)
    target: Any = document
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    with pytest.raises(EvidenceError):
        RunnerResult.read(written(tmp_path, document))


def test_a_result_of_a_newer_runner_asks_for_an_update(tmp_path):
    with pytest.raises(EvidenceError, match="version 3") as raised:
        RunnerResult.read(written(tmp_path, {**GOOD, "schema": 3}))
    assert raised.value.remedy == "Update sme2_assets."


def test_the_samples_of_a_kernels_pass_are_read(tmp_path):
    result = RunnerResult.read(written(tmp_path, SAMPLED))
    assert result.etdump is not None
    assert result.samples == SamplesFact(file="samples.json", bytes=90, count=5, dropped=2)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": None},
        {"etdump": None},
        {"pass": "etdump"},
        {"pass": "latency", "etdump": None},
        *(
            {"samples": {**SAMPLED["samples"], key: value}}
            for key, value in (("count", -1), ("count", 5.0), ("dropped", None), ("bytes", 0), ("more", 1))
        ),
        {"samples": {**SAMPLED["samples"], "file": "../samples.json"}},
    ],
)
def test_samples_that_do_not_add_up_are_refused(tmp_path, change):
    with pytest.raises(EvidenceError):
        RunnerResult.read(written(tmp_path, {**SAMPLED, **change}))


CONDITIONS = [
    {"at": "start", "cpu": 4, "cpu_khz": {"4": 3_000_000, "10": 2_000_000}, "temperature_c": 41.5},
    {"at": "end", "cpu": None, "cpu_khz": {}, "temperature_c": None},
]
PLACED = {**GOOD, "cpus": [4, 10], "qos": None, "conditions": CONDITIONS}


def test_where_the_runner_ran_and_how_fast_its_cpus_were_is_read(tmp_path):
    result = RunnerResult.read(written(tmp_path, PLACED))
    assert (result.cpus, result.qos) == ((4, 10), None)
    assert result.conditions == (
        Conditions(at="start", cpu=4, cpu_khz={4: 3_000_000, 10: 2_000_000}, temperature_c=41.5),
        Conditions(at="end", cpu=None, cpu_khz={}, temperature_c=None),
    )


def test_a_result_stored_before_the_runner_told_its_cpus_is_still_read(tmp_path):
    result = RunnerResult.read(written(tmp_path, GOOD))
    assert (result.cpus, result.qos, result.conditions) == (None, None, ())


@pytest.mark.parametrize(
    "change",
    [
        {"cpus": []},
        {"cpus": [4, 4]},
        {"cpus": [10, 4]},
        {"cpus": [-1]},
        {"cpus": "4"},
        {"qos": ""},
        {"qos": 3},
        {"conditions": None},
        *(
            {"conditions": [{**CONDITIONS[0], key: value}]}
            for key, value in (
                *(("at", "later"), ("cpu", -1), ("cpu", True), ("cpu_khz", []), ("cpu_khz", {"x": 1})),
                *(("cpu_khz", {"0": 0}), ("temperature_c", 900), ("temperature_c", True), ("more", 1)),
            )
        ),
    ],
)
def test_conditions_that_do_not_add_up_are_refused(tmp_path, change):
    with pytest.raises(EvidenceError):
        RunnerResult.read(written(tmp_path, {**PLACED, **change}))


@pytest.mark.parametrize("key", [key for key in GOOD if key not in ADDED_LATER])
def test_a_result_that_lacks_a_field_is_refused(tmp_path, key):
    with pytest.raises(EvidenceError, match=key):
        RunnerResult.read(written(tmp_path, {k: v for k, v in GOOD.items() if k != key}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', '{"schema": NaN}', "[" * 100_000])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    with pytest.raises(EvidenceError):
        RunnerResult.read(written(tmp_path, text))


def test_a_missing_result_is_told(tmp_path):
    with pytest.raises(EvidenceError, match="missing"):
        RunnerResult.read(tmp_path / "result.json")


def test_the_answer_to_cpu_is_read(runner):
    cpu = CpuFacts.model_validate_json(runner.call("--cpu").stdout)
    assert cpu.arch in ("aarch64", "x86_64")


def test_every_exit_code_of_the_runner_has_a_meaning():
    header = (NATIVE_DIR / "src" / "failure.h").read_text()
    codes = {int(code) for code in re.findall(r"^  \w+ = (\d+),$", header, re.MULTILINE)}
    assert codes == {0, *(code for code in EXIT_MEANINGS if code < 126)}


def test_the_runner_s_own_words_are_kept():
    stderr = (
        "I 00:00:00.000704 executorch:cpuinfo_utils.cpp:71] Reading file x\n"
        "E 00:00:00.006861 executorch:program.cpp:114] File size is too small\n"
        "sme2_runner: error: model m.pte: not a whole program; export it again\n"
    )
    error = runner_failure(3, stderr)
    assert "exit code 3" in error.what
    assert "model m.pte: not a whole program" in error.what
    assert "File size is too small" in error.what
    assert "Reading file" not in error.what
    assert error.remedy == "export it again"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGILL, "instruction"),
        (128 + signal.SIGILL, "instruction"),
        (-signal.SIGKILL, "memory ran out"),
        (-signal.SIGSEGV, "crashed"),
        (-signal.SIGABRT, "check"),
        (127, "not found"),
        (8, "tracer"),
        (9, "sampler"),
        (77, "does not explain"),
    ],
)
def test_a_failure_without_words_is_explained_by_its_code(code, words):
    error = runner_failure(code, "")
    assert words in error.what
    assert error.remedy


def test_a_real_failure_reads_well(runner, programs, tmp_path):
    run = runner.run(tmp_path / "nope.pte", [])
    error = runner_failure(run.returncode, run.stderr)
    assert "nope.pte" in error.what
    assert "\n  Log" not in error.what


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "./sme2_runner: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./sme2_runner)"),
        (1, "./sme2_runner: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by it)"),
        (127, "./sme2_runner: error while loading shared libraries: libexecutorch.so: cannot open ..."),
    ],
)
def test_a_runner_that_was_built_for_another_system_names_the_one_that_brings_its_libraries(
    code: int, said: str
):
    error = runner_failure(code, said)
    assert "needs libraries that this machine does not have" in error.what
    assert said in error.what
    assert "--runner wheel" in str(error.remedy)
