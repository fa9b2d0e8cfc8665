"""A runner ends with the process that asked for it, at whatever moment that is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sme2_assets_tests.servers import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")

ASK = """
import sys
from pathlib import Path
from sme2_assets.targets.contained import run_contained
print("up", flush=True)
run_contained(sys.argv[2:], {}, Path(sys.argv[1]), 600)
"""


def running(word: str) -> list[int]:
    """Processes that have `word` on their command line, other than those of this test."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.encode() in each for each in words) and b"-c" not in words:
            found.append(int(folder.name))
    return found


def leave_nothing_behind(command: list[str], folder: Path, moments: int, longest_s: float) -> None:
    """Starts the command, kills who asked for it after a random time, and waits until nothing of it runs."""
    draw, seen = random.Random(3), 0
    for moment in range(moments):
        parent = subprocess.Popen(
            [sys.executable, "-c", ASK, str(folder), *command], stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        if moment % 2:
            # Half of them when it runs for certain, the others at any moment of its start.
            wait_for(lambda: running(str(folder)), 120, "the runner began")
        time.sleep(draw.uniform(0, longest_s))
        seen += bool(running(str(folder)))
        parent.kill()
        parent.wait()
        parent.stdout.close()
        wait_for(lambda: not running(str(folder)), 120, "the runner ended")
    assert seen > moments // 3, "there was hardly anything to be left behind"


def endless(runner: list[str], programs, folder: Path) -> list[str]:
    program = programs("two_inputs")
    inputs = [word for path in program.inputs for word in ("--input", str(path))]
    return [
        *(*runner, "--model", str(program.pte), *inputs, "--pass", "latency", "--threads", "2"),
        *("--warmup", "1", "--iterations", "1", "--timed-ms", "600000", "--iterations-cap", "5000000"),
        *("--result", str(folder / "result.json"), "--outputs", str(folder / "outputs")),
    ]


@pytest.mark.parametrize("moments", [4, pytest.param(25, marks=pytest.mark.thorough)])
def test_no_runner_survives_the_command_that_started_it(runner_binary, programs, tmp_path, moments):
    command = endless([str(runner_binary.path)], programs, tmp_path)
    leave_nothing_behind(command, tmp_path, moments, 0.3)


@pytest.mark.parametrize("moments", [2, pytest.param(10, marks=pytest.mark.thorough)])
def test_no_emulated_runner_survives_either(emulated_command, programs, tmp_path, moments):
    leave_nothing_behind(endless(emulated_command, programs, tmp_path), tmp_path, moments, 0.6)


def test_without_a_parent_to_end_with_a_runner_goes_on(runner_binary, tmp_path):
    """Who starts it by hand in the background keeps it."""
    done = subprocess.run([str(runner_binary.path), "--version"], capture_output=True, text=True, env={})
    assert done.returncode == 0


def test_a_runner_whose_parent_is_gone_already_does_not_begin(runner_binary):
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run(
        [str(runner_binary.path), "--version"], env={"SME2_RUNNER_PARENT": str(gone.pid)}, check=False
    )
    assert done.returncode == 128 + 9


def test_a_program_between_the_two_is_no_harm(runner_binary):
    command = ["sh", "-c", '"$0" --version; exit $?', str(runner_binary.path)]
    environ = {"SME2_RUNNER_PARENT": str(os.getpid()), "PATH": os.environ["PATH"]}
    assert subprocess.run(command, env=environ, check=False).returncode == 0
