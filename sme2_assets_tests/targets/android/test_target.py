"""Sessions on a real adb daemon: what is sent, what comes back, and what faults leave behind."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.store import Store, sha256_of_file
from sme2_assets.targets import Program, open_target
from sme2_assets.targets.android import pool as pool_module
from sme2_assets.targets.android import target as target_module
from sme2_assets.targets.android import workspace as workspace_module
from sme2_assets.targets.android.device import device_id_of
from sme2_assets.targets.android.target import AndroidTarget, EmulatedAndroidTarget
from sme2_assets.targets.android.workspace import free_bytes
from sme2_assets.targets.clusters import parse_features
from sme2_assets_tests.targets.android.adb_loopback import DevicePrograms, LoopbackDevice
from sme2_assets_tests.targets.android.test_adb import gone, number_in

HOSTILE = ["it's \"", "$(touch owned)", "a\nb", "-rf", "Größe 模型; *"]


@pytest.fixture
def target(loopback_device: LoopbackDevice, tmp_path: Path) -> AndroidTarget:
    return AndroidTarget(tmp_path / "tools", loopback_device.serial)


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _leftovers(device: LoopbackDevice) -> list[str]:
    """What sessions have left on the device."""
    sessions = Path(device.root) / "sessions"
    current = Path(device.root) / "current"
    return [
        *sorted(session.name for session in sessions.glob("*")),
        *(["current"] * current.is_symlink()),
    ]


def _without_leftovers(device: LoopbackDevice, within_s: float = 10) -> bool:
    deadline_s = time.monotonic() + within_s
    while _leftovers(device) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not _leftovers(device)


def test_hostile_names_come_back_as_they_are(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    with target.workspace() as workspace:
        for number, name in enumerate(HOSTILE):
            there = workspace.put(_file(tmp_path / name, name.encode()))
            done = workspace.run(["cp", "--", there, workspace.path(name)], {}, 20)
            assert (done.returncode, done.stderr) == (0, "")
            workspace.get(name, tmp_path / "back" / str(number))
            assert (tmp_path / "back" / str(number)).read_bytes() == name.encode()
        for name in ("..", "../up", "/etc/passwd", "a/../../b", "", "."):
            with pytest.raises(Sme2Error, match="does not name a file inside"):
                workspace.path(name)
    assert len(list((tmp_path / "back").iterdir())) == len(HOSTILE)
    assert not list(loopback_device.folder.rglob("owned"))


def test_nothing_is_pushed_twice_and_what_is_damaged_is_pushed_again(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    model = _file(tmp_path / "model.pte", os.urandom(200_000))
    with target.workspace() as first:
        there = first.put(model)
        assert first.put(model) == there
        assert first.bytes_pushed == 200_000
    # The same content under another name is the same file over there.
    with target.workspace() as second:
        assert second.put(_file(tmp_path / "other", model.read_bytes())) == there
        assert second.bytes_pushed == 0
    Path(there).write_bytes(b"not the model any more")
    with target.workspace() as third:
        assert third.put(model) == there
        assert third.bytes_pushed == 200_000
    assert sha256_of_file(Path(there)) == Path(there).name


def test_a_program_is_started_with_its_files_under_their_names(target: AndroidTarget, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    (folder / "lib").mkdir(parents=True)
    _file(folder / "start", b'#!/bin/sh\ncat "$1/lib/greeting"; echo "$2"; pwd\n')
    _file(folder / "lib" / "greeting", b"hello ")
    program = Program(folder, ("start", "lib/greeting"), ("./start", "."))
    with target.workspace() as workspace:
        command = workspace.install(program)
        done = workspace.run([*command, "$HOME"], {}, 20)
        assert done.stdout == f"hello $HOME\n{workspace.path('x').removesuffix('/x')}\n"
        assert done.command == [*command, "$HOME"]
        pushed = workspace.bytes_pushed
        assert workspace.install(program) == command
        assert workspace.bytes_pushed == pushed


def test_a_crash_leaves_no_older_trace_to_be_taken_for_its_own(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    write = ["sh", "-c", 'echo "$0" > "$1"; mkdir "$1.d"; echo deep > "$1.d/file"']
    with target.workspace() as workspace:
        workspace.run([*write, "old", workspace.path("trace")], {}, 20)
        workspace.get("trace.d", tmp_path / "folder")
        assert (tmp_path / "folder" / "file").read_text() == "deep\n"
    assert _leftovers(loopback_device) == []
    # Someone's trace of the same name, in the folder where all sessions were once.
    stale = _file(Path(loopback_device.root) / "trace", b"stale")
    with target.workspace() as workspace:
        crashed = workspace.run(["sh", "-c", "kill -ABRT $$"], {}, 20)
        assert crashed.returncode == -6
        with pytest.raises(RunnerError, match="did not write trace"):
            workspace.get("trace", tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
    stale.unlink()


def test_a_full_device_is_told_before_and_while_files_are_sent(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _file(tmp_path / "model", os.urandom(3_000_000))
    monkeypatch.setenv("SME2_ANDROID_ROOT", str(loopback_device.folder / "small"))
    with target.workspace() as workspace:
        with pytest.raises(TargetUnavailable, match=r"2 MB free .* 3 MB have to be sent") as full:
            workspace.put(model)
        monkeypatch.setattr(workspace_module, "SPARE_BYTES", -(2**30))
        with pytest.raises(TargetUnavailable, match="No space left on device"):
            workspace.put(model)
        assert workspace.bytes_pushed == 0
    assert "sme2 devices --clean" in str(full.value)
    # Room for bytes, none for another file.
    monkeypatch.setenv("SME2_ANDROID_ROOT", str(loopback_device.folder / "few_files"))
    with target.workspace() as workspace:
        workspace.run(["touch", workspace.path("one")], {}, 20)
        with pytest.raises(TargetUnavailable, match="No space left on device"):
            workspace.put(model)


def test_a_device_or_program_of_another_architecture_is_refused(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    assert target.availability("off").ok
    loopback_device.say_machine("armv8l")
    answer = target.availability("off")
    assert not answer.ok
    assert "not aarch64 but 'armv8l'" in answer.detail
    assert "64-bit" in (answer.remedy or "")
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (62).to_bytes(2, "little")
    _file(tmp_path / "runner", header + bytes(64))
    with target.workspace() as workspace:
        with pytest.raises(RunnerError, match="not a program for aarch64"):
            workspace.install(Program(tmp_path, ("runner",), ("./runner",)))
        assert workspace.bytes_pushed == 0


@pytest.mark.parametrize("fault", ["kill", "cut", "disconnect", "vanish"])
def test_a_session_goes_on_after_its_device_was_away(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path, fault: str
) -> None:
    messages: list[str] = []
    model = _file(tmp_path / "model", os.urandom(1000))
    with target.workspace() as workspace:
        there = workspace.put(model)
        lost_name = workspace.name
        note = tmp_path / "process"
        running = 'echo half > "$0"; sleep 1000 & echo $! > "$1"; wait'
        striker = threading.Thread(target=lambda: (number_in(note), getattr(loopback_device, fault)()))
        striker.start()
        with pytest.raises(ConnectionLost):
            workspace.run(["sh", "-c", running, workspace.path("trace"), str(note)], {}, 60)
        striker.join()
        if fault == "kill":
            with pytest.raises(ConnectionLost, match="did not come back within 0 s") as away:
                target.recover(0, messages.append)
            assert "sme2 devices" in str(away.value)
        loopback_device.start()
        target.recover(30, messages.append)
    assert messages[-1] == f"{target.device} answers again"
    # What the lost session ran would disturb the next, or be taken for it.
    assert gone(number_in(note))
    with target.workspace() as again:
        assert lost_name not in _leftovers(loopback_device)
        with pytest.raises(RunnerError, match="did not write"):
            again.get("trace", tmp_path / "trace")
        assert again.put(model) == there
        assert again.bytes_pushed == 0
    assert _without_leftovers(loopback_device)


def test_another_device_at_the_same_address_is_not_taken_for_the_lost_one(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    getprop = _file(loopback_device.folder / "bin" / "getprop", b"#!/bin/sh\necho first phone\n")
    getprop.chmod(0o755)
    try:
        with target.leased(tmp_path / "leases", print):
            loopback_device.cut()
            target.recover(30, print)
            getprop.write_text("#!/bin/sh\necho second phone\n")
            loopback_device.cut()
            with pytest.raises(TargetUnavailable, match="A different device now answers"):
                target.recover(30, print)
    finally:
        getprop.unlink()


def test_a_session_of_another_computer_is_waited_for(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = AndroidTarget(tmp_path / "tools", loopback_device.serial)
    monkeypatch.setattr(target_module, "_BUSY_PATIENCE_S", 1.5)
    messages: list[str] = []
    with other.workspace() as workspace, target.leased(tmp_path / "leases", messages.append):
        with pytest.raises(TargetUnavailable, match="still not free"), target.workspace():
            pass
        assert workspace.name in messages[0]
        with pytest.raises(TargetUnavailable, match="is measuring"):
            target.clean()
    with target.workspace() as workspace:
        workspace.put(_file(tmp_path / "x", b"x" * 100_000))
    assert target.clean() >= 100_000
    assert not list(Path(loopback_device.root).iterdir())


def test_what_a_restarted_device_kept_of_dead_sessions_is_removed(
    target: AndroidTarget, loopback_device: LoopbackDevice
) -> None:
    root = Path(loopback_device.root)
    for name in ("dead-1", "dead-2"):
        (root / "sessions" / name / "files").mkdir(parents=True)
        _file(root / "sessions" / name / "files" / "trace", b"old")
        _file(root / "sessions" / name / "holder", b"1\n")
        os.utime(root / "sessions" / name, (0, 0))
    (root / "current").symlink_to("dead-1")
    with target.workspace() as workspace:
        assert _leftovers(loopback_device) == [workspace.name, "current"]
    assert _leftovers(loopback_device) == []


def test_one_of_several_devices_must_be_named(
    loopback_device: LoopbackDevice,
    second_device: LoopbackDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(tmp_path)
    answer = open_target("android", store).availability("off")
    assert not answer.ok
    assert loopback_device.serial in answer.detail
    assert second_device.serial in answer.detail
    assert "--device" in (answer.remedy or "")
    named = open_target("android", store, second_device.serial)
    assert named.availability("off").ok
    assert named.device == device_id_of(second_device.serial)
    monkeypatch.setenv("ANDROID_SERIAL", loopback_device.serial)
    assert open_target("android", store).device == device_id_of(loopback_device.serial)


def test_any_takes_the_first_free_device_that_is_able(
    loopback_device: LoopbackDevice,
    second_device: LoopbackDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_POOL_PAUSE_S", 0.1)
    store, ids = Store(tmp_path), {device_id_of(device.serial) for device in (loopback_device, second_device)}
    pool = open_target("android", store, "any")
    pool.require("off")
    messages: list[str] = []
    with pool.leased(store.leases, print) as first, pool.leased(store.leases, print) as second:
        assert {first.device, second.device} == ids
        monkeypatch.setattr(pool_module, "_POOL_PATIENCE_S", 0.3)
        with (
            pytest.raises(TargetUnavailable, match="still in use"),
            pool.leased(store.leases, messages.append),
        ):
            pass
    assert "all suitable devices are in use" in messages[0]
    loopback_device.say_machine("armv8l")
    with pool.leased(store.leases, print) as able:
        assert able.device == device_id_of(second_device.serial)
        with pytest.raises(TargetUnavailable, match="still in use"), pool.leased(store.leases, print):
            pass
    second_device.say_machine("armv8l")
    with pytest.raises(TargetUnavailable, match="armv8l"):
        pool.require("off")


def test_a_device_without_sme2_emulates_it_when_asked(
    emulating_device: LoopbackDevice,
    device_programs: DevicePrograms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = open_target("android", Store(tmp_path), emulating_device.serial)
    assert isinstance(target, EmulatedAndroidTarget)
    assert target.fidelity == "emulated"
    assert target.availability("on").ok
    with target.workspace() as workspace:
        shell = workspace.put(device_programs.shell)
        done = workspace.run([shell, "-c", 'print -r -- "$(</proc/cpuinfo)"'], {}, 60)
    assert "sme2" in parse_features(done.stdout)
    assert done.command[1:3] == ["-cpu", "max"]
    monkeypatch.delenv("SME2_ANDROID_EMULATE")
    assert open_target("android", Store(tmp_path), emulating_device.serial).fidelity == "hardware"


def test_sme2_is_there_when_every_cpu_has_it() -> None:
    with_it, without = "Features\t: fp sve2 sme sme2 smei16i32\n", "Features\t: fp sme\n"
    assert "sme2" in parse_features(f"processor: 0\n{with_it}processor: 1\n{with_it}")
    assert "sme2" not in parse_features(with_it + without)
    assert "sme2" not in parse_features("")


def test_free_space_is_read_from_the_last_line_of_df() -> None:
    text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/dm-9 100 40 60 40% /data/user/0\n"
    assert free_bytes(text) == 60 * 1024
    assert free_bytes("df: not found") is None


@pytest.mark.parametrize("root", ["relative/folder", "/", "/data/../etc"])
def test_a_root_folder_must_be_a_plain_absolute_path(
    target: AndroidTarget, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setenv("SME2_ANDROID_ROOT", root)
    with pytest.raises(Sme2Error, match="SME2_ANDROID_ROOT"), target.workspace():
        pass
