"""The build: found tools, content-addressed binaries, nothing half-done left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sme2_assets.errors import BuildError
from sme2_assets.runner import build
from sme2_assets.runner.build import build_runner, find_toolchain, load_runner, source_hash


def finished(artifacts: Path) -> list[Path]:
    """What looks like a finished runner."""
    return [p for p in (artifacts / "runners").glob("*") if p.name != "logs" and not p.name.startswith(".")]


def test_the_same_key_is_not_built_again(runner_binary, artifacts_dir):
    lines: list[str] = []
    again = build_runner(artifacts_dir, log=lines.append)
    assert again.cached
    assert (again.path, again.sha256) == (runner_binary.path, runner_binary.sha256)
    assert again.path.parent.name == again.source_sha256[:16]
    assert not any("compile" in line for line in lines)


def test_a_stored_runner_is_read_back(runner_binary):
    loaded = load_runner(runner_binary.path.parent)
    assert loaded.sha256 == runner_binary.sha256
    assert loaded.library_dir.is_dir()
    assert loaded.compiler.split()[0] in ("gcc", "clang", "appleclang")


def test_a_changed_source_changes_the_key(native_copy):
    tools = find_toolchain()
    before = source_hash(native_copy, tools)
    assert before == source_hash(build.NATIVE_DIR, tools)
    source = native_copy / "src" / "main.cpp"
    source.write_text(source.read_text() + "\n")
    after = source_hash(native_copy, tools)
    (native_copy / "src" / "more.h").write_text("")
    assert len({before, after, source_hash(native_copy, tools)}) == 3


def test_compiler_flags_from_the_environment_change_the_key(monkeypatch):
    tools = find_toolchain()
    before = source_hash(build.NATIVE_DIR, tools)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    assert source_hash(build.NATIVE_DIR, tools) != before


def test_a_failed_build_tells_its_last_lines_and_keeps_its_log(native_copy, tmp_path):
    for source in (native_copy / "src").glob("*.cpp"):
        source.write_text("#error this cannot be compiled\n")
    artifacts = tmp_path / "artifacts"
    with pytest.raises(BuildError) as caught:
        build_runner(artifacts, log=lambda line: None, native_dir=native_copy)
    assert "this cannot be compiled" in caught.value.what
    logs = list((artifacts / "runners" / "logs").iterdir())
    assert len(logs) == 1
    assert str(logs[0]) in str(caught.value)
    assert "this cannot be compiled" in logs[0].read_text()
    assert finished(artifacts) == []
    assert list((artifacts / "runners").glob(".build-*")) == []


def test_a_killed_build_leaves_nothing_that_looks_finished(tmp_path):
    script = (
        "import sys; from pathlib import Path; from sme2_assets.runner.build import build_runner;"
        "build_runner(Path(sys.argv[1]), log=lambda line: print(line, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("runner: compile"):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert finished(tmp_path) == []
    assert len(list((tmp_path / "runners").glob(".build-*"))) == 1


def test_what_a_dead_build_left_is_cleared_by_the_next(native_copy, tmp_path):
    (native_copy / "CMakeLists.txt").write_text(
        'cmake_minimum_required(VERSION 3.28)\nmessage(FATAL_ERROR "no")\n'
    )
    key = source_hash(native_copy, find_toolchain())[:16]
    dead = tmp_path / "runners" / f".build-{key}-dead"
    dead.mkdir(parents=True)
    with pytest.raises(BuildError):
        build_runner(tmp_path, log=lambda line: None, native_dir=native_copy)
    assert not dead.exists()


def test_a_second_build_of_the_same_key_waits_for_the_first(runner_binary, artifacts_dir):
    import fcntl

    lines: list[str] = []
    lock = runner_binary.path.parent.parent / f".{runner_binary.path.parent.name}.lock"
    script = (
        "import sys; from pathlib import Path; from sme2_assets.runner.build import build_runner;"
        "build_runner(Path(sys.argv[1]), log=lambda line: print(line, flush=True))"
    )
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(artifacts_dir)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        time.sleep(0.2)
        assert process.poll() is None
    lines += process.stdout.readlines()
    assert process.wait() == 0
    assert "waiting" in lines[0]
    assert "already built" in lines[-1]


def stored_copy(runner_binary, folder: Path) -> Path:
    copy = folder / runner_binary.path.parent.name
    copy.mkdir(parents=True)
    for path in runner_binary.path.parent.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize(
    "harm", ["manifest gone", "manifest cut", "manifest foreign", "binary cut", "binary gone"]
)
def test_a_damaged_store_is_refused(runner_binary, tmp_path, harm):
    directory = stored_copy(runner_binary, tmp_path)
    what, how = harm.split()
    path = directory / ("manifest.json" if what == "manifest" else runner_binary.path.name)
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        path.write_text("[1, 2]")
    with pytest.raises(BuildError) as caught:
        load_runner(directory)
    assert caught.value.remedy is not None
    assert "build the runner again" in caught.value.remedy


def test_a_missing_compiler_is_told_with_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"No C\+\+ compiler"):
        build.find_compiler()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(BuildError, match="no-such-compiler"):
        build.find_compiler()


def test_an_old_cmake_is_told_with_how_to_get_a_newer(tmp_path):
    old = tmp_path / "cmake"
    old.write_text("#!/bin/sh\necho cmake version 3.25.1\n")
    old.chmod(0o755)
    with pytest.raises(BuildError, match=r"3\.25\.1.*3\.28") as caught:
        build.find_cmake_version(old)
    assert "pip install" in str(caught.value.remedy)


def test_an_environment_without_executorch_is_told_what_to_install(tmp_path):
    script = (
        "from sme2_assets.errors import BuildError\n"
        "from sme2_assets.runner.build import find_toolchain\n"
        "try: find_toolchain()\n"
        "except BuildError as error: print(error)\n"
    )
    # -S leaves site-packages out: a Python with nothing installed but what this package locks with.
    import filelock

    (tmp_path / "filelock").symlink_to(Path(filelock.__file__).parent)
    root = Path(build.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(tmp_path)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "ExecuTorch is not installed" in done.stdout, done.stderr
    assert "pip install" in done.stdout


def test_the_room_imports_no_torch():
    rooms = "sme2_assets.runner.build, sme2_assets.runner.failures"
    script = f"import sys, {rooms}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_build_for_another_machine_does_not_depend_on_where_its_tools_are(tmp_path: Path):
    """A data folder can be moved: the compiler and the libraries that were fetched into it move along."""
    tools = find_toolchain()
    here = replace(
        tools,
        target="Linux another",
        options=("-DCMAKE_SYSTEM_PROCESSOR=another",),
        compiler=(str(tmp_path / "here" / "another-g++"),),
        sdk=replace(tools.sdk, folder=tmp_path / "here" / "executorch"),
    )
    there = replace(
        here,
        compiler=(str(tmp_path / "there" / "another-g++"),),
        sdk=replace(tools.sdk, folder=tmp_path / "there" / "executorch"),
    )
    assert here.is_cross
    assert source_hash(build.NATIVE_DIR, here) == source_hash(build.NATIVE_DIR, there)
    assert source_hash(build.NATIVE_DIR, here) != source_hash(build.NATIVE_DIR, tools)
