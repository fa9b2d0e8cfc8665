"""One session at a time on a device, whoever asks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.errors import TargetUnavailable
from sme2_assets.targets.lease import is_leased, lease

HOLD = """
import sys, time
from pathlib import Path
from sme2_assets.targets.lease import lease
with lease(Path(sys.argv[1]), "phone", log=print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_device_in_use_by_another_process_is_waited_for_and_then_refused(tmp_path: Path, holder):
    said: list[str] = []
    with (
        pytest.raises(TargetUnavailable, match="in use"),
        lease(tmp_path, "phone", log=said.append, patience_s=0.2),
    ):
        raise AssertionError("both processes have the device")
    assert "measuring something else" in said[0]


def test_another_device_is_free(tmp_path: Path, holder):
    with lease(tmp_path, "tablet", log=print, patience_s=0.2):
        pass


def test_the_lease_of_a_killed_process_ends_with_it(tmp_path: Path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease(tmp_path, "phone", log=print, patience_s=120):
        pass


def test_a_lease_ends_with_its_block_also_after_an_error(tmp_path: Path):
    with pytest.raises(RuntimeError), lease(tmp_path, "phone", log=print):
        raise RuntimeError
    with lease(tmp_path, "phone", log=print, patience_s=0.1):
        pass


def test_whoever_looks_sees_the_lease_and_leaves_its_file_for_others_to_lock(tmp_path: Path, holder):
    assert is_leased(tmp_path, "phone")
    assert not is_leased(tmp_path, "tablet")
    assert not (tmp_path / "tablet.lock").exists()
    holder.kill()
    holder.wait()
    before = (tmp_path / "phone.lock").stat().st_ino
    assert not is_leased(tmp_path, "phone")
    assert (tmp_path / "phone.lock").stat().st_ino == before, "two could hold what one looked at"
