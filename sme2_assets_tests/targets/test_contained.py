"""A program that means harm costs only itself; one whose parent is killed is not left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sme2_assets.errors import RunnerError, TargetUnavailable
from sme2_assets.runner.failures import runner_failure
from sme2_assets.targets import contained
from sme2_assets.targets.contained import Printed, printed_by, run_contained
from sme2_assets.targets.lease import lease
from sme2_assets_tests.servers import wait_for

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def run(code: str, folder: Path, timeout_s: float = 300) -> tuple[int, str, str]:
    return run_contained([sys.executable, "-c", code], {}, folder, timeout_s)


def test_what_a_program_says_and_how_it_ends_is_told(tmp_path: Path):
    code = "import os, sys; print(os.getcwd()); print('x' * 10**6, file=sys.stderr); sys.exit(4)"
    returncode, out, err = run(code, tmp_path)
    assert (returncode, out, len(err)) == (4, f"{tmp_path}\n", 10**6 + 1)


def test_a_program_that_never_ends_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = (
        "import time, os; open('new', 'w').write(str(os.getpid())); os.rename('new', 'pid'); time.sleep(600)"
    )

    def once_it_is_up(process: subprocess.Popen[bytes], deadline: float) -> Printed:
        begun = time.monotonic()
        wait_for((tmp_path / "pid").exists, 120, "the program began")
        return printed_by(process, deadline + time.monotonic() - begun)

    monkeypatch.setattr(contained, "printed_by", once_it_is_up)
    with pytest.raises(RunnerError, match="did not end within 1 s"):
        run(code, tmp_path, 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_that_closes_its_outputs_is_still_waited_for(tmp_path: Path):
    assert run("import os, time; os.close(1); os.close(2); time.sleep(0.2); os._exit(3)", tmp_path)[0] == 3
    with pytest.raises(RunnerError, match="did not end"):
        run("import os, time; os.close(1); os.close(2); time.sleep(600)", tmp_path, 1)


def test_a_flood_of_words_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sme2_assets.targets.contained.MOST_BYTES", 1 << 20)
    with pytest.raises(RunnerError, match="printed more than 1 MiB"):
        run("while True: print('x' * 1000)", tmp_path)


@linux_only
def test_a_file_beyond_the_limit_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contained, "LARGEST_FILE_BYTES", 1 << 20)
    # Python itself ignores the signal that ends others. The limit is set while the program already runs.
    code = (
        "import resource, signal, time; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "while resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20: time.sleep(0.01)\n"
        "open('f', 'wb').write(bytes(1 << 22))"
    )
    returncode, _, err = run(code, tmp_path)
    assert returncode == -signal.SIGXFSZ
    assert "beyond the limit" in runner_failure(returncode, err).what
    assert (tmp_path / "f").stat().st_size == 1 << 20


@linux_only
def test_more_memory_than_the_machine_has_is_refused_and_the_program_is_the_first_to_go(tmp_path: Path):
    code = (
        "import mmap, os, resource, time\n"
        "def first(): return open('/proc/self/oom_score_adj').read().strip()\n"
        "def limit(): return resource.getrlimit(resource.RLIMIT_DATA)[0]\n"
        # Both are set while the program already runs, this one last.
        "while limit() == resource.RLIM_INFINITY or first() != '1000': time.sleep(0.01)\n"
        "print(first())\n"
        "flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000;"  # whatever the system promises to others
        "mmap.mmap(-1, 1 << 42, flags=flags)"
    )
    returncode, out, err = run(code, tmp_path)
    assert (returncode, out) == (1, "1000\n")
    assert "Cannot allocate memory" in err


HOLD = """
import sys
from pathlib import Path
from sme2_assets.targets.contained import run_contained
from sme2_assets.targets.lease import lease
with lease(Path(sys.argv[1]), "phone", log=print):
    run_contained([sys.executable, "-c", "print(1); open('up', 'w'); import time; time.sleep(600)"],
                  {}, Path(sys.argv[1]), 600)
"""


def test_a_lease_lasts_until_the_program_that_uses_the_device_has_ended(tmp_path: Path):
    """Whatever a killed command left running: nobody measures beside it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], start_new_session=True)
    wait_for((tmp_path / "up").exists, 120, "the program began")
    holder.kill()
    holder.wait()
    try:
        with pytest.raises(TargetUnavailable), lease(tmp_path, "phone", log=print, patience_s=0.2):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
    with lease(tmp_path, "phone", log=print, patience_s=120):
        pass
