"""One session at a time on a device, whoever asks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.defs.assets.models import current_export
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import TargetUnavailable
from sme2_assets.store import is_unlocked
from sme2_assets.targets.lease import beside_sessions, is_leased, lease
from sme2_assets.targets.local import EmulatedTarget, NativeTarget
from sme2_assets_tests.e2e.conftest import make_data_folder

HOLD = """
import sys, time
from pathlib import Path
from sme2_assets.targets.lease import lease
with lease(Path(sys.argv[1]), "phone", log=print, what="a session of toy_cnn-fp32"):
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
    assert f"in use by a session of toy_cnn-fp32 (process {holder.pid})" in said[0]


def test_a_wait_counts_down(tmp_path: Path, holder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sme2_assets.targets.lease._TELL_S", 0.0)
    said: list[str] = []
    with (
        pytest.raises(TargetUnavailable, match="by a session of toy_cnn-fp32"),
        lease(tmp_path, "phone", log=said.append, patience_s=2),
    ):
        pass
    left = [int(re.findall(r"at most (\d+) s more", line)[0]) for line in said]
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 1


def test_work_that_reads_no_time_waits_for_no_session_and_none_waits_for_it(tmp_path: Path, holder):
    with beside_sessions(tmp_path, "phone", print), beside_sessions(tmp_path, "phone", print):
        holder.kill()
        holder.wait()
        with lease(tmp_path, "phone", log=print, patience_s=0):
            pass
        locks = [lock for lock in tmp_path.glob("*.lock") if not is_unlocked(lock)]
        assert locks, "what removes things sees that somebody works"
        for lock in locks:
            with pytest.raises(TargetUnavailable), lease(tmp_path, lock.stem, log=print, patience_s=0):
                pass
    with lease(tmp_path, locks[0].stem, log=print, patience_s=0):
        pass


def test_an_export_waits_for_no_session(tmp_path: Path, artifacts_dir: Path):
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    said: list[str] = []
    with NativeTarget("linux").leased(store.leases, print):
        assert current_export(Lab(data_root=str(store.root)), "toy_cnn-fp32", said.append).pte.is_file()
    assert not any("waiting" in line for line in said)


def test_an_emulated_session_runs_beside_a_native_one(tmp_path: Path):
    emulated, native = EmulatedTarget(tmp_path / "tools"), NativeTarget("linux")
    assert emulated.occupied == native.device
    with native.leased(tmp_path, print), emulated.leased(tmp_path, print), emulated.leased(tmp_path, print):
        pass


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
