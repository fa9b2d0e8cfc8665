"""The inventory: one file of devices, chosen by name, by label, or whichever is free."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.defs.resources import Lab, Nights
from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.arm_requests import ArmRequest, places_of
from sme2_assets.profiling.arms import same_runner, sme2_arms
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.requests import requests_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.runner.bundle import build_bundle
from sme2_assets.store import Store
from sme2_assets.targets import SME2_STATES, open_target
from sme2_assets.targets import pool as pool_module
from sme2_assets.targets.android.adb import Adb
from sme2_assets.targets.inventory import platform_of, read_inventory
from sme2_assets.targets.lease import lease
from sme2_assets.targets.remote.connection import Script
from sme2_assets.targets.ssh.connection import SshConnection
from sme2_assets_tests.targets.android.adb_loopback import AdbBridge, LoopbackDevice
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine

VARIANT = "toy_cnn-fp32"
SHORT = plan_for(
    "hardware", rounds=3, warmup=1, iterations=2, kernel_rounds=0, quiet_patience_s=0, cool_patience_s=0
)


def _sme2(data: Path, line: str) -> Result:
    return CliRunner().invoke(main, ["--data", str(data), *shlex.split(line)], catch_exceptions=False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("SME2_INVENTORY", raising=False)
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    return Store(tmp_path)


@pytest.fixture
def write(store: Store) -> Callable[[object], Path]:
    """Writes the inventory of the data folder."""

    def written(content: object) -> Path:
        path = store.root / "devices.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return path

    return written


@pytest.fixture
def lab_of_two(
    ssh_machine: SshMachine, second_machine: SshMachine, write: Callable[[object], Path]
) -> tuple[SshMachine, SshMachine]:
    write(
        {
            "devices": {
                "pi5": {"ssh": ssh_machine.url, "labels": ["lab", "small"]},
                "workstation": {"ssh": second_machine.url, "labels": ["lab"]},
            }
        }
    )
    return ssh_machine, second_machine


def test_without_a_file_there_are_no_devices(store: Store):
    assert read_inventory(store).devices == {}
    with pytest.raises(TargetUnavailable, match="linux"):
        open_target("linux", store, "any").require("off")


def test_an_empty_variable_names_no_file(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_INVENTORY", "")
    assert read_inventory(store).devices == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "devices:\n  pi:\n    shh: ssh://pi@host\n",
            ["devices.pi.shh, line 3: there is no such key", "'ssh'"],
        ),
        ("devices:\n  pi:\n    ssh: pi@host\n", ["devices.pi.ssh, line 3: 'pi@host' is not the address"]),
        ("devices:\n  pi:\n    labels: [a]\n", ["devices.pi, line 2: give either ssh"]),
        ("devices:\n  pi: {ssh: 'ssh://h', adb: X}\n", ["devices.pi, line 2: give either ssh"]),
        ("devices:\n  pi: {ssh: 'ssh://h', server: 'tcp:h:1'}\n", ["server is for adb"]),
        ("devices:\n  p: {adb: X, server: lab}\n", ["is not the address of an adb server"]),
        ("devices:\n  p: {adb: X, server: 'tcp:h:99999'}\n", ["is not the address of an adb server"]),
        ("devices:\n  p: {adb: X, server: 'tcp:h:0'}\n", ["is not the address of an adb server"]),
        ("devices:\n  any: {adb: X}\n", ["'any' cannot be a name"]),
        ("devices:\n  p: {adb: X, labels: [a b]}\n", ["line 2: 'a b' cannot be a name"]),
        ("devices:\n  a: {adb: X}\n  b: {adb: X}\n", ["devices.b, line 3: is the same device as a"]),
        (
            "devices:\n  a: {adb: X}\n  b: {adb: X, labels: [a b]}\n  c: {adb: 7}\n",
            ["3 problems", "devices.b, line 3: is the same device as a", "'a b' cannot be", "devices.c.adb"],
        ),
        ("devices:\n  a: {adb: X}\n  a: {adb: Y}\n", ["line 3", "twice"]),
        ("", ["devices.yaml is empty"]),
        ("devices: [\n", ["line 2: this is not YAML"]),
        ("devices: [x]\n", ["devices, line 1: must be a mapping"]),
        ("devices:\n  a: {adb: 7}\n  b: {ssh: 3}\n", ["devices.a.adb, line 2", "devices.b.ssh, line 3"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    store: Store, write: Callable[[object], Path], text: str, told: list[str]
):
    write(text)
    with pytest.raises(Sme2Error) as caught:
        read_inventory(store)
    for part in told:
        assert part in str(caught.value), str(caught.value)
    assert "docs/devices.md" in (caught.value.remedy or "")
    assert "sme2 config" not in (caught.value.remedy or "")
    done = _sme2(store.root, "devices")
    assert done.exit_code == 1
    assert told[0] in done.stderr.replace("\n", " ") or told[0].split(":")[0] in done.stderr


def test_a_device_that_is_nowhere_is_told_with_the_names_of_the_inventory(
    store: Store, write: Callable[[object], Path], monkeypatch: pytest.MonkeyPatch
):
    write("devices: {pi: {ssh: 'ssh://pi@127.0.0.1:1'}, board: {ssh: 'ssh://pi@127.0.0.1:2'}}")
    monkeypatch.delenv("SME2_ADB", raising=False)
    monkeypatch.setattr("sme2_assets.targets.android.adb.find_adb", lambda: None)
    told = _sme2(store.root, "devices --device bord")
    assert told.exit_code == 1
    said = " ".join(told.stderr.split())
    assert "The inventory has no device 'bord' (did you mean 'board'?). adb" in said
    assert "The inventory has pi, board." in said
    shown = json.loads(_sme2(store.root, "devices --device any --json").stdout)
    assert [report["name"] for report in shown] == ["pi", "board"]


def test_who_has_no_adb_is_told_so_and_nothing_has_failed(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SME2_ADB", raising=False)
    monkeypatch.setattr("sme2_assets.targets.android.adb.find_adb", lambda: None)
    told = _sme2(store.root, "devices")
    assert told.exit_code == 0, told.stderr
    said = " ".join(told.stderr.split())
    assert "Android devices are not shown: adb" in said
    assert "ssh://user@host" in said
    assert json.loads(_sme2(store.root, "devices --json").stdout) == []


def test_a_file_that_is_named_must_be_there(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    elsewhere = tmp_path / "lab.yaml"
    elsewhere.write_text("devices: {pi: {ssh: 'ssh://pi@host', labels: [lab]}}\n")
    monkeypatch.setenv("SME2_INVENTORY", str(elsewhere))
    assert platform_of(store, "pi") == platform_of(store, "label:lab") == "linux"
    assert open_target("linux", store, "pi").address == "ssh://pi@host"  # type: ignore[attr-defined]
    answer = open_target("linux", store, "label:lap").availability("off")
    assert not answer.ok
    assert "has the label 'lap' (did you mean 'lab'?)" in answer.detail
    with pytest.raises(Sme2Error, match=r"linux.*'pi'"):
        open_target("linux", store, "pii")
    with pytest.raises(TargetUnavailable, match="'pi' on android"):
        open_target("android", store, "pi")
    with pytest.raises(TargetUnavailable, match=r"'pii'.*'pi'"):
        platform_of(store, "pii")
    assert platform_of(store, "R58N1234") == "android"
    assert open_target("android", store, "pii").device, "as a serial number, where somebody says so"
    monkeypatch.setenv("SME2_INVENTORY", str(tmp_path / "nothing.yaml"))
    with pytest.raises(Sme2Error, match=r"nothing\.yaml"):
        read_inventory(store)


def test_all_devices_are_shown_with_their_state(
    lab_of_two: tuple[SshMachine, SshMachine],
    loopback_device: LoopbackDevice,
    store: Store,
    write: Callable[[object], Path],
):
    first, second = lab_of_two
    document = yaml.safe_load((store.root / "devices.yaml").read_text())
    document["devices"]["phone"] = {"adb": loopback_device.serial, "labels": ["lab"]}
    document["devices"]["lost"] = {"adb": "NOT-THERE"}
    write(document)
    second.kill()
    second.cut()
    shown = {it["name"]: it for it in json.loads(_sme2(store.root, "devices --json").stdout)}
    assert {name: it["state"] for name, it in shown.items()} == {
        "pi5": "reachable",
        "workstation": "unreachable",
        "phone": "device",
        "lost": "unreachable",
    }
    assert shown["pi5"]["device"] == first.target().device
    assert shown["pi5"]["labels"] == ["lab", "small"]
    assert shown["lost"]["problem"] == "not connected"
    assert all(it["remedy"] for it in shown.values() if it["problem"])
    text = _sme2(store.root, "devices --device label:small").stdout
    assert f"pi5 ({first.url})" in text
    assert "workstation" not in text
    with pytest.raises(Sme2Error, match="android and linux"):
        platform_of(store, "label:lab")
    second.start()


def test_a_device_of_another_adb_server_is_asked_there(
    adb_bridge: AdbBridge,
    loopback_device: LoopbackDevice,
    store: Store,
    write: Callable[[object], Path],
    monkeypatch: pytest.MonkeyPatch,
):
    server = adb_bridge.environment["ADB_SERVER_SOCKET"]
    # The usual server is one that is not there, and that cannot be started.
    monkeypatch.setenv("ADB_SERVER_SOCKET", "tcp:192.0.2.1:1")
    write({"devices": {"phone": {"adb": loopback_device.serial, "server": server}}})
    target = open_target("android", store, "phone")
    assert target.availability("off").ok
    with target.workspace() as workspace:
        assert workspace.run(["echo", "hello"], {}, 120).stdout == "hello\n"


def test_a_label_or_any_takes_the_first_that_is_free_and_able(
    lab_of_two: tuple[SshMachine, SshMachine], store: Store, monkeypatch: pytest.MonkeyPatch
):
    first, second = lab_of_two
    monkeypatch.setattr(pool_module, "_POOL_PAUSE_S", 0.1)
    pool = open_target("linux", store, "label:lab")
    pool.require("off")
    assert (pool.fidelity, pool.bundle_arch) == (first.target().fidelity, first.target().facts().arch)
    with (
        pool.leased(store.leases, print) as one,
        open_target("linux", store, "any").leased(store.leases, print) as two,
    ):
        assert [one.device, two.device] == [first.target().device, second.target().device]
        monkeypatch.setattr(pool_module, "_POOL_PATIENCE_S", 0.3)
        with pytest.raises(TargetUnavailable, match="in use"), pool.leased(store.leases, print):
            pass
    first.kill()
    first.cut()
    with pool.leased(store.leases, print) as able:
        assert able.device == second.target().device
    for choice in ("any", "label:lab"):
        asked = open_target("linux", store, choice)
        assert (asked.facts().cores, asked.cpus("0")) == (second.target().facts().cores, (0,))
    [place], _, _ = places_of(store, [ArmRequest(VARIANT)], "change", "linux", "label:lab")
    assert place.device == "label:lab"
    first.start()
    first.say_machine("armv7l")
    with open_target("linux", store, "any").leased(store.leases, print) as able:
        assert able.device == second.target().device


def test_a_machine_that_another_computer_uses_is_not_free(
    lab_of_two: tuple[SshMachine, SshMachine], store: Store, monkeypatch: pytest.MonkeyPatch
):
    first, second = lab_of_two
    monkeypatch.setattr(pool_module, "_POOL_PAUSE_S", 0.1)
    # Another data folder, which has no lease here: only the machine knows of it.
    with first.target().workspace() as workspace:
        with open_target("linux", store, "label:lab").leased(store.leases, print) as free:
            assert free.device == second.target().device
        shown = {it["name"]: it for it in json.loads(_sme2(store.root, "devices --json").stdout)}
        assert {name: (it["in_use"], it["holder"]) for name, it in shown.items()} == {
            "pi5": (True, workspace.name),
            "workstation": (False, None),
        }
        assert workspace.name in _sme2(store.root, "devices --device pi5").stdout.replace("\n", "")
        monkeypatch.setattr(pool_module, "_POOL_PATIENCE_S", 0.3)
        pool = open_target("linux", store, "label:small")
        with pytest.raises(TargetUnavailable, match="in use"), pool.leased(store.leases, print):
            pass
    with open_target("linux", store, "label:lab").leased(store.leases, print) as free:
        assert free.device == first.target().device


def test_who_waits_for_a_machine_hardly_asks_it(
    lab_of_two: tuple[SshMachine, SshMachine], store: Store, monkeypatch: pytest.MonkeyPatch
):
    first, _ = lab_of_two
    asked: list[str] = []
    command = SshConnection.command

    def counted(self: SshConnection, script: Script) -> list[str]:
        asked.append(self.name)
        return command(self, script)

    monkeypatch.setattr(SshConnection, "command", counted)
    monkeypatch.setattr(pool_module, "_POOL_PAUSE_S", 0.1)
    monkeypatch.setattr(pool_module, "_POOL_PATIENCE_S", 3.0)
    pool = open_target("linux", store, "label:small")
    with lease(store.leases, first.target().device, log=print):
        asked.clear()
        with pytest.raises(TargetUnavailable, match="in use"), pool.leased(store.leases, print):
            pass
    assert len(asked) <= 3, "what it is, once for the runner and once for the wait"


def test_copies_of_one_installation_are_told(
    lab_of_two: tuple[SshMachine, SshMachine], store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SME2_ADB", str(store.root / "adb"))
    both = [machine.folder / "bin" / "cat" for machine in lab_of_two]
    try:
        for machine in lab_of_two:
            machine.say_identity("copy")
        # Both run on one kernel, as one machine that has two addresses does.
        shown = json.loads(_sme2(store.root, "devices --json").stdout)
        assert [it["problem"] for it in shown] == [None, None]
        for number, cat in enumerate(both):
            boot = f"{number}0c6ad1e-7a3b-4d5e-8f90-123456789abc"
            cat.write_text(f'#!/bin/sh\ncase "$1" in */boot_id) echo {boot};; *) exec /bin/cat "$@";; esac\n')
            cat.chmod(0o755)
        shown = json.loads(_sme2(store.root, "devices --json").stdout)
    finally:
        for machine in lab_of_two:
            machine.say_identity(None)
        for cat in both:
            cat.unlink(missing_ok=True)
    assert len({it["device"] for it in shown}) == 1
    assert "as workstation" in shown[0]["problem"]
    assert "as pi5" in shown[1]["problem"]
    assert all("systemd-machine-id-setup" in it["remedy"] for it in shown)


def test_a_device_out_of_reach_costs_only_itself(
    lab_of_two: tuple[SshMachine, SshMachine],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    first, second = lab_of_two
    (tmp_path / "model").write_bytes(b"x" * 1_000_000)
    with second.target().workspace() as workspace:
        workspace.put(tmp_path / "model")
    first.kill()
    first.cut()
    for option, said in (("--clean", "MB removed"), ("--restore", "nothing to restore")):
        done = _sme2(store.root, f"devices {option}")
        assert done.exit_code == 1
        assert f"{second.url}: " in done.stderr
        assert said in done.stderr
        [lost] = [line for line in done.stderr.splitlines() if line.startswith(f"{first.url}: ")]
        assert lost
    first.start()

    # An adb that hangs, which nobody here needs.
    adb = tmp_path / "adb"
    adb.write_text("#!/bin/sh\nexec sleep 60\n")
    adb.chmod(0o755)
    monkeypatch.setenv("SME2_ADB", str(adb))
    monkeypatch.setitem(Adb.run.__kwdefaults__, "timeout_s", 0.5)
    done = _sme2(store.root, "devices --json")
    assert done.exit_code == 0
    assert [it["name"] for it in json.loads(done.stdout)] == ["pi5", "workstation"]
    assert "Devices that only adb knows are not shown: `adb devices -l` did not answer" in done.stderr


def test_the_platform_of_any_device_follows_from_the_inventory(store: Store, write: Callable[[object], Path]):
    assert platform_of(store, "any") == "android"
    write({"devices": {"pi": {"ssh": "ssh://pi@host"}}})
    assert platform_of(store, "any") == "linux"
    write({"devices": {"pi": {"ssh": "ssh://pi@host"}, "phone": {"adb": "X"}}})
    with pytest.raises(Sme2Error, match="android and linux"):
        platform_of(store, "any")


def test_two_devices_measure_at_once_each_by_one_session(
    lab_of_two: tuple[SshMachine, SshMachine],
    store: Store,
    exported: Callable[[str], ExportedModel],
    artifacts_dir: Path,
):
    model = exported(VARIANT)
    arch = lab_of_two[0].target().bundle_arch
    bundle = build_bundle(artifacts_dir, tools=artifacts_dir / "tools", arch=arch, log=print)
    both = threading.Barrier(2, timeout=600)
    measured: list[Manifest] = []

    def log(line: str) -> None:
        # Neither goes on before the other has its device, nor ends before the other measures.
        if line.startswith("measuring on") or ": round 1" in line:
            both.wait()

    def measure() -> None:
        target = open_target("linux", store, "label:lab")
        measured.extend(
            measure_session(store, target, model, same_runner(bundle), sme2_arms(["off"]), SHORT, log)
        )

    sessions = [threading.Thread(target=measure) for _ in range(2)]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    assert {it.context.device for it in measured} == {machine.target().device for machine in lab_of_two}
    assert len({it.session_id for it in measured}) == 2
    [(begun, ended), (also_begun, also_ended)] = [
        (datetime.fromisoformat(it.info.started_at), datetime.fromisoformat(it.info.finished_at))
        for it in measured
    ]
    assert max(begun, also_begun) < min(ended, also_ended)
    for manifest in measured:
        assert len({process.round for process in manifest.info.processes}) == SHORT.rounds


def _no_address(*texts: str) -> None:
    for text in texts:
        assert not any(private in text for private in ("ssh://", "pi@", "127.0.0.1")), text


def test_a_night_asks_for_each_device_that_a_label_means(
    lab_of_two: tuple[SshMachine, SshMachine], store: Store
):
    lab = Lab(data_root=str(store.root))
    wanted = Nights(variants=[VARIANT], devices=["label:lab", "pi5"]).requests(lab)
    assert [(it.variant, it.platform, it.states, it.device) for it in wanted.requests] == [
        (VARIANT, "linux", ("off",), "pi5"),
        (VARIANT, "linux", ("off",), "workstation"),
    ]
    assert all("SME2" in note for note in wanted.notes)
    _no_address(*wanted.notes)
    lab_of_two[1].kill()
    lab_of_two[1].cut()
    fewer = Nights(variants=[VARIANT], devices=["label:lab"]).requests(lab)
    assert [it.device for it in fewer.requests] == ["pi5"]
    assert "workstation was left out" in str(fewer.left_out[0])
    _no_address(*map(str, fewer.left_out), *fewer.notes)
    lab_of_two[0].kill()
    lab_of_two[0].cut()
    with pytest.raises(Sme2Error, match="None of the devices can be measured") as caught:
        Nights(variants=[VARIANT], devices=["label:lab"]).requests(lab)
    _no_address(str(caught.value))
    with pytest.raises(TargetUnavailable, match="label 'labb'"):
        Nights(variants=[VARIANT], devices=["label:labb"]).requests(lab)


def test_a_label_is_measured_in_the_states_that_its_devices_have(
    lab_of_two: tuple[SshMachine, SshMachine], store: Store
):
    wanted = requests_for(store, [VARIANT], "linux", SME2_STATES, "label:small")
    [request] = wanted.requests
    assert (request.states, request.device) == (("off",), "label:small")
    said = {"hardware": "measured with SME2 off alone", "reference": "is a reference here"}
    assert said[lab_of_two[0].target().fidelity] in wanted.notes[0]
