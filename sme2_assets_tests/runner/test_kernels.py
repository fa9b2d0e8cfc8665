"""The kernels pass: where every thread was, sampled by the runner while it ran its inferences."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sme2_assets.etdump import EventKind, read_etdump
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.recording import write_samples

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sampler was only ever run on Linux")

XNNPACK = "libexecutorch_backend_xnnpack.so"


def samples_of(folder: Path, binary: RunnerBinary) -> dict[str, Any]:
    """The samples of a run, with functions named by the files of its runner."""
    write_samples(
        folder / "recording.json", folder / "samples.json", (binary.program.folder, binary.library_dir)
    )
    return json.loads((folder / "samples.json").read_text())


@pytest.fixture
def sampled(runner, runner_binary, programs):
    """A native run with some hundred samples: its run and its samples."""

    def sample(name: str = "two_inputs", **options: object):
        program = programs(name)
        options = {"iterations": 2000, "sample_period_us": 50, **options}
        run = runner.run(program.pte, program.inputs, kind="kernels", **options)
        assert run.returncode == 0, run.stderr
        return run, samples_of(runner.folder, runner_binary)

    return sample


def test_the_recording_is_whole_and_adds_up(sampled):
    run, _ = sampled()
    path = run.folder / "recording.json"
    document = json.loads(path.read_text())
    columns, places = document["samples"], document["places"]
    file = run.result.samples
    assert (file.file, file.bytes, file.dropped) == (path.name, path.stat().st_size, 0)
    assert {len(column) for column in columns.values()} == {file.count}
    assert set(columns) == {"time_ns", "thread", "place"}
    assert set(columns["place"]) == set(range(len(places["address"])))
    assert {len(column) for column in places.values()} == {len(places["address"])}
    assert set(places["module"]) <= {None, *range(len(document["modules"]))}
    names = [Path(module["path"]).name for module in document["modules"]]
    assert {XNNPACK, "sme2_runner"} <= set(names)
    # What the kernel maps is in no file, so its bytes are in the recording.
    mapped = {name for name, module in zip(names, document["modules"], strict=True) if module["image"]}
    assert mapped == {name for name in names if name.startswith("linux-vdso")}


def test_the_samples_file_is_whole_and_adds_up(sampled):
    run, document = sampled()
    columns = document["samples"]
    count = run.result.samples.count
    assert count > 0
    assert {len(column) for column in columns.values()} == {count}
    assert set(columns) == {"time_ns", "thread", "function", "address", "word"}
    assert (document["schema"], document["period_ns"], document["dropped"]) == (1, 50_000, 0)
    assert document["missed"] >= 0
    assert document["arch"] == run.result.cpu.arch
    assert set(columns["function"]) == set(range(len(document["functions"])))
    assert set(columns["thread"]) <= set(range(len(document["threads"])))
    assert columns["time_ns"] == sorted(columns["time_ns"])


def test_every_sample_lies_in_its_function_and_library(sampled):
    _, document = sampled()
    columns = document["samples"]
    for function, address, word in zip(columns["function"], columns["address"], columns["word"], strict=True):
        known = document["functions"][function]
        if known["library"] is not None:
            assert "/" not in known["library"]
            assert known["offset"] <= address
        assert (word is None) or 0 <= word < 2**32
    libraries = {function["library"] for function in document["functions"]}
    assert XNNPACK in libraries


def test_the_instruction_words_are_those_of_the_library(sampled, runner_binary):
    _, document = sampled()
    if document["arch"] == "aarch64":
        assert_words_of(runner_binary.library_dir / XNNPACK, document)
    else:
        assert set(document["samples"]["word"]) == {None}, "instructions of other CPUs have no fixed size"


def assert_words_of(library: Path, document: dict[str, Any]) -> None:
    """What was read from memory is what stands in the file: text is not relocated, so address is place."""
    text = np.fromfile(library, dtype="<u4")
    columns = document["samples"]
    inside = [
        (address, word)
        for function, address, word in zip(
            columns["function"], columns["address"], columns["word"], strict=True
        )
        if document["functions"][function]["library"] == XNNPACK
    ]
    assert inside
    for address, word in inside:
        assert text[address // 4] == word


def test_samples_are_of_the_measured_inferences_only(sampled):
    run, document = sampled(warmup=50)
    events = read_etdump(run.folder / "trace.etdump")
    inferences = events.kind == EventKind.METHOD_EXECUTE
    starts, ends = events.start_ns[inferences], events.end_ns[inferences]
    assert len(starts) == 2000
    clock = document["clock"]
    times = np.array(document["samples"]["time_ns"]) - clock["monotonic_ns"] + clock["trace_ns"]
    assert times.max() <= clock["trace_ns"]
    # Where warm-up was sampled too, a fortieth of the samples would be before the first of these inferences.
    at = np.searchsorted(starts, times, side="right") - 1
    assert np.mean(at >= 0) > 0.99
    assert np.mean(times[at >= 0] <= ends[at[at >= 0]]) > 0.5


@pytest.mark.parametrize("warmup", [0, 2])
def test_the_threads_of_the_pool_are_sampled_too(sampled, warmup):
    for _ in range(100):
        run, document = sampled(threads=2, warmup=warmup)
        # On a busy machine one of them may do all the work.
        if len(set(document["samples"]["thread"])) == 2:
            break
    assert run.result.threads == 2
    assert len(document["threads"]) == 2
    assert [thread["main"] for thread in document["threads"]].count(True) == 1
    assert len({thread["tid"] for thread in document["threads"]}) == 2
    assert set(document["samples"]["thread"]) == {0, 1}


def test_samples_that_find_no_room_are_counted(sampled):
    run, document = sampled(sample_capacity=3)
    assert len(document["samples"]["time_ns"]) == run.result.samples.count == 3
    assert document["dropped"] == run.result.samples.dropped > 0


def test_a_run_too_short_for_a_sample_has_none(sampled):
    run, document = sampled(iterations=1, sample_period_us=1_000_000)
    assert run.result.samples.count == 0
    assert document["functions"] == []
    assert all(column == [] for column in document["samples"].values())


def test_sampling_changes_no_output(runner, programs, sampled):
    program = programs("portable")
    plain = runner.run(program.pte, program.inputs).output(0)
    run, _ = sampled("portable")
    np.testing.assert_array_equal(run.output(0), plain)


def test_a_failed_inference_leaves_no_samples(runner, programs, tmp_path):
    np.save(tmp_path / "index.npy", np.array([1, 99, 3]))
    run = runner.run(programs("lookup").pte, [tmp_path / "index.npy"], kind="kernels", warmup=0)
    assert run.returncode == 5
    assert not (runner.folder / "recording.json").exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="preloads a library, needs cc")
def test_only_the_kernels_pass_makes_timers(runner, programs, tmp_path):
    source, library = tmp_path / "no_timers.c", tmp_path / "no_timers.so"
    source.write_text(
        "#include <stdlib.h>\nint timer_create(int c, void *e, void *t) { abort(); }\n"
        "int sigaction(int s, const void *n, void *o) { abort(); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    program = programs("two_inputs")
    codes = {
        kind: runner.call(
            *runner.flags(program.pte, program.inputs, kind=kind), LD_PRELOAD=str(library)
        ).returncode
        for kind in ("latency", "etdump", "kernels")
    }
    assert codes == {"latency": 0, "etdump": 0, "kernels": -6}


def test_a_sampler_that_cannot_start_is_told(runner, programs):
    """Each timer takes a place among the queued signals of the user: here there are none."""
    program = programs("two_inputs")
    done = subprocess.run(
        [str(runner.binary), *map(str, runner.flags(program.pte, program.inputs, kind="kernels"))],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0)),
    )
    assert done.returncode == 9, done.stderr
    assert "sampler could not be started" in done.stderr
    assert "ulimit -i" in done.stderr
    assert not (runner.folder / "result.json").exists()


@pytest.fixture
def emulated_samples(runner, programs, emulated_runner: RunnerBinary, emulated_command: list[str]):
    """The samples of an emulated run."""

    def sample(sme2: str) -> dict[str, Any]:
        program = programs("two_inputs")
        flags = runner.flags(program.pte, program.inputs, kind="kernels", iterations=150)
        done = subprocess.run(
            [*emulated_command, *map(str, flags)],
            env={**os.environ, "SME2_RUNNER_SME2": sme2},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        document = samples_of(runner.folder, emulated_runner)
        # The emulator's own threads are none of the program's.
        assert [thread["main"] for thread in document["threads"]] == [True]
        return document

    return sample


def symbols_in(document: dict[str, Any]) -> Counter[str]:
    """The symbols that samples fell in, with how many did."""
    functions = document["functions"]
    return Counter(functions[function]["symbol"] or "" for function in document["samples"]["function"])


def test_sme2_kernels_are_seen_at_work_unmasked_and_never_masked(emulated_samples):
    on, off = symbols_in(emulated_samples("on")), symbols_in(emulated_samples("off"))
    assert sum(count for symbol, count in on.items() if "_sme2_mopa" in symbol) > 0
    assert sum(off.values()) > 0
    assert [symbol for symbol in off if "_sme" in symbol] == []


def test_the_instruction_words_of_an_emulated_run_are_those_of_its_library(emulated_samples, emulated_runner):
    assert_words_of(emulated_runner.library_dir / XNNPACK, emulated_samples("on"))


def test_the_time_between_counter_and_clock_is_measured(sampled):
    _, document = sampled()
    assert 0 < document["clock"]["lag_ns"] < 1_000_000_000
