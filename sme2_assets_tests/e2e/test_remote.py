"""The whole chain on devices: a real adbd and a real sshd on this machine.

Sessions go on where a device comes back, and leave nothing where it does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.errors import ConnectionLost, RunnerError
from sme2_assets.evidence.device import native_fidelity
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.arms import aa_arms, same_runner, sme2_arms
from sme2_assets.profiling.plan import Plan, plan_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.bundle import build_bundle
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.android.power import MODES
from sme2_assets.targets.host import host_device
from sme2_assets.targets.remote import target as target_module
from sme2_assets_tests.e2e.conftest import Workbench
from sme2_assets_tests.targets.android.adb_loopback import LoopbackDevice
from sme2_assets_tests.targets.android.android_userland import Userland
from sme2_assets_tests.targets.remote.devices import RemoteDevice
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine

VARIANT = "toy_cnn-fp32"
SHORT = plan_for(
    "hardware",
    rounds=2,
    warmup=1,
    iterations=2,
    kernel_rounds=0,
    timeout_s=600,
    quiet_patience_s=0,
    cool_patience_s=0,
)


@pytest.fixture(
    params=[
        pytest.param("loopback_device", marks=pytest.mark.thorough, id="adb"),
        pytest.param("ssh_machine", id="ssh"),
    ]
)
def remote_device(request: pytest.FixtureRequest) -> RemoteDevice:
    """Over SSH it runs this host's own code, over adb an emulated one's."""
    device: RemoteDevice = request.getfixturevalue(request.param)
    return device


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def device_bundle(remote_device: RemoteDevice, artifacts_dir: Path) -> RunnerBinary:
    """The runner for the device's CPU: aarch64 behind adb, this host's own behind ssh."""
    arch = remote_device.target().bundle_arch
    return build_bundle(artifacts_dir, tools=artifacts_dir / "tools", arch=arch, log=print)


@pytest.fixture
def measured(
    store: Store,
    remote_device: RemoteDevice,
    exported: Callable[[str], ExportedModel],
    device_bundle: RunnerBinary,
) -> Callable[..., list[Manifest]]:
    """Measures a session on the device."""

    def measure(
        plan: Plan = SHORT,
        *,
        runner: RunnerBinary = device_bundle,
        model: ExportedModel | None = None,
        log: Callable[[str], None] = print,
        arms: int = 1,
    ) -> list[Manifest]:
        specs = sme2_arms(["off"]) if arms == 1 else aa_arms("off")
        target = open_target(remote_device.target().platform, store, remote_device.serial)
        return measure_session(
            store, target, model or exported(VARIANT), same_runner(runner), specs, plan, log
        )

    return measure


@pytest.fixture
def stored_runs(store: Store) -> Callable[[], list[str]]:
    return lambda: sorted(path.name for path in store.runs.iterdir()) if store.runs.is_dir() else []


@pytest.mark.thorough
def test_the_chain_runs_on_a_device_with_sme2_on_and_off(
    workbench: Workbench, emulating_device: LoopbackDevice
):
    first = workbench.profile(VARIANT, "android", "off", "on")
    runs = workbench.warehouse.query("SELECT * FROM latest_runs WHERE platform = 'android'")
    assert sorted(runs["sme2"]) == ["off", "on"]
    assert (runs["fidelity"] == "emulated").all()
    assert runs["session_id"].nunique() == runs["runner_sha256"].nunique() == 1
    assert runs["device"].unique().tolist() == [emulating_device.device.device_id]
    assert emulating_device.serial not in runs.to_csv(), "a serial number is never stored"
    operators = workbench.warehouse.query(
        "SELECT sme2, name FROM operator_summary WHERE platform = 'android' AND sme2_evidence <> 'none'"
    )
    assert set(operators["sme2"]) == {"on"}
    assert operators["name"].str.contains("PF32").all()
    [verdict] = workbench.warehouse.query(
        "SELECT verdict FROM sme2_comparison WHERE platform = 'android' AND level = 'model'"
    )["verdict"]
    assert verdict == "not comparable"
    assert list((workbench.store.reports / VARIANT / "android").glob("*/report.md"))
    second = workbench.profile(VARIANT, "android", "off")
    assert any("0.0 MB pushed in this session" in line for line in second), second
    assert not any("0.0 MB pushed in this session" in line for line in first), first


def test_power_modes_are_arms_and_each_is_set_while_its_arm_runs(
    android_userland: Userland, workbench: Workbench
):
    """The transport and the session are real, what a phone does with a setting is not (android_userland)."""
    owners = {"low_power": "1", "stay_on_while_plugged_in": "3"}
    android_userland.put(**owners)
    serial = android_userland.loopback.serial
    model = workbench.compare("android", serial, variants=[VARIANT], power=["boost", "app"])
    assert (model["factor"], model["a_value"], model["b_value"]) == (
        "power",
        "boost",
        "app",
    )
    for row, mode in (("a_run_id", "boost"), ("b_run_id", "app")):
        manifest = Manifest.read(workbench.store.run_dir(model[row]) / MANIFEST_FILE)
        power = manifest.context.power
        assert (manifest.identity.power_mode, power["mode"], power["taken"]) == (mode, mode, True)
        assert {each["name"]: each["after"] for each in power["settings"]} == MODES[mode].settings
        assert {each["before"] for each in power["settings"]} == {*owners.values(), None}, "after the owner's"
    assert android_userland.settings() == owners
    assert (android_userland.state / "svc.log").read_text().split() == ["woken", "woken"], "once per round"


def test_a_machine_over_ssh_gives_rows_of_its_own_and_a_report(
    ssh_machine: SshMachine, workbench: Workbench, monkeypatch: pytest.MonkeyPatch
):
    """The command that a laptop gives, with a session that is kept short."""
    monkeypatch.setenv("SME2_DATA", str(workbench.store.root))
    line = (
        f"profile {VARIANT} --platform linux --device {ssh_machine.url} --rounds 2 --runs 2 --warmup 1 --json"
    )
    done = CliRunner().invoke(
        main, ["--data", str(workbench.store.root), *line.split()], catch_exceptions=False
    )
    assert done.exit_code == 0, done.stderr
    there = ssh_machine.target()
    fidelity = native_fidelity(there.facts().arch)
    said = {"hardware": "measured with SME2 off alone", "reference": "is a reference here"}[fidelity]
    assert said in done.stderr
    [session] = json.loads(done.stdout)
    assert list(session["run_ids"]) == ["off"]
    [run] = workbench.warehouse.query(
        "SELECT * FROM runs WHERE session_id = ?", [session["session_id"]]
    ).to_dict("records")
    assert (run["device"], run["platform"], run["arch"]) == (there.device, "linux", there.facts().arch)
    assert run["device"] != host_device()
    assert run["fidelity"] == fidelity
    evidence = [file for file in workbench.store.run_dir(run["run_id"]).rglob("*") if file.is_file()]
    written = [json.dumps(run, default=str), *(file.read_bytes().decode("latin1") for file in evidence)]
    for private in (ssh_machine.url, "127.0.0.1", "pi@"):
        assert not any(private in text for text in written), f"{private} is in what is stored"
    operators = workbench.warehouse.query("SELECT * FROM operators WHERE run_id = ?", [run["run_id"]])
    assert len(operators)
    for name in ("history", "report"):
        words = [*f"{name} {VARIANT} --platform linux".split()]
        shown = CliRunner().invoke(
            main, ["--data", str(workbench.store.root), *words], catch_exceptions=False
        )
        assert shown.exit_code == 0, shown.stderr
    assert list((workbench.store.reports / VARIANT / "linux").rglob("report.md"))


def after_the_first_round(act: Callable[[], None]) -> tuple[list[str], Callable[[str], None]]:
    """A log that does something when the first round is done, once."""
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if ": round 1" in line and sum(": round 1" in each for each in lines) == 1:
            act()

    return lines, log


def test_a_cut_connection_costs_the_round_it_was_in_and_no_other(
    measured: Callable[..., list[Manifest]], remote_device: RemoteDevice
):
    lines, log = after_the_first_round(remote_device.cut)
    first, second = measured(log=log, arms=2)
    assert any("measured again" in line for line in lines), lines
    for manifest in (first, second):
        latency = [process.round for process in manifest.info.processes if process.pass_kind == "latency"]
        assert latency == [0, 1], "each round is there once, the interrupted one from its beginning"
    assert first.info.flags.count("lost: the device went away, and the round was measured again") == 1


def test_a_device_that_dies_and_comes_back_goes_on_where_it_was(
    measured: Callable[..., list[Manifest]], remote_device: RemoteDevice
):
    gone = threading.Event()

    def die() -> None:
        remote_device.kill()
        gone.set()

    lines, log = after_the_first_round(die)

    def revived(line: str) -> None:
        log(line)
        # The main thread, which the daemon must be started from, is the one that measures.
        if gone.is_set() and "Waiting for the device" in line:
            gone.clear()
            remote_device.start()

    [manifest] = measured(log=revived)
    assert len({process.round for process in manifest.info.processes}) == 2
    assert any("answers again" in line for line in lines), lines


def test_a_device_that_stays_away_leaves_the_finished_rounds(
    measured: Callable[..., list[Manifest]],
    stored_runs: Callable[[], list[str]],
    remote_device: RemoteDevice,
):
    plan = replace(SHORT, rounds=3, max_rounds=3, reconnect_patience_s=1.0)
    lines, log = after_the_first_round(remote_device.kill)
    [manifest] = measured(plan, log=log)
    assert {process.round for process in manifest.info.processes} == {0}
    assert "lost: the device went away in round 2 and stayed away" in manifest.info.flags
    assert any("The finished round is kept" in line for line in lines), lines
    assert len(stored_runs()) == 1


# A computer that waits for a machine, takes it as soon as it can, and keeps it.
_ANOTHER = """
import sys
from sme2_assets.targets.ssh.target import SshTarget
target = SshTarget(sys.argv[1])
target._log = lambda line: print(line, flush=True)
with target.workspace():
    print("taken", flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_a_machine_that_another_computer_takes_meanwhile_leaves_the_finished_rounds(
    ssh_machine: SshMachine,
    store: Store,
    exported: Callable[[str], ExportedModel],
    artifacts_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    others: list[subprocess.Popen[str]] = []

    def taken() -> None:
        words = [sys.executable, "-c", _ANOTHER, ssh_machine.url]
        another = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        others.append(another)
        assert another.stdout is not None
        assert "waiting for it" in another.stdout.readline()
        monkeypatch.setattr(target_module, "_BUSY_PATIENCE_S", 20.0)
        ssh_machine.disconnect()
        assert another.stdout.readline() == "taken\n"

    lines, log = after_the_first_round(taken)
    arch = ssh_machine.target().bundle_arch
    bundle = build_bundle(artifacts_dir, tools=artifacts_dir / "tools", arch=arch, log=print)
    try:
        [manifest] = measure_session(
            store,
            open_target("linux", store, ssh_machine.url),
            exported(VARIANT),
            same_runner(bundle),
            sme2_arms(["off"]),
            replace(SHORT, rounds=3, max_rounds=3),
            log,
        )
        assert [another.poll() for another in others] == [None], "it still has the machine"
    finally:
        for another in others:
            another.communicate("")
    assert {process.round for process in manifest.info.processes} == {0}
    assert any("still not free" in line and "The finished round is kept" in line for line in lines), lines
    assert "lost: the device went away in round 2 and could not be had again" in manifest.info.flags
    # Nothing more ran on a machine that is another's by now.
    assert any("not held any more" in line for line in lines), lines
    assert store.run_dir(manifest.run_id).is_dir()


def test_a_device_that_is_gone_from_the_first_round_on_leaves_nothing(
    measured: Callable[..., list[Manifest]],
    stored_runs: Callable[[], list[str]],
    remote_device: RemoteDevice,
    monkeypatch: pytest.MonkeyPatch,
):
    # Nothing was ever pushed there, so something will be, in the first round.
    monkeypatch.setenv(remote_device.device.root_variable, f"{remote_device.root}_fresh")
    plan = replace(SHORT, reconnect_patience_s=1.0)

    def log(line: str) -> None:
        if "pushed" in line:
            remote_device.kill()

    with pytest.raises(ConnectionLost) as caught:
        measured(plan, log=log)
    assert "sme2 devices" in str(caught.value.remedy)
    assert stored_runs() == []


@pytest.fixture
def spoiled(device_bundle: RunnerBinary, tmp_path: Path) -> Callable[[str], RunnerBinary]:
    """A bundle whose runner is a shell program that may call the real one as `real "$@"`."""

    def make(script: str) -> RunnerBinary:
        folder = tmp_path / "spoiled"
        folder.mkdir()
        for name in device_bundle.files:
            (folder / name).symlink_to(device_bundle.path.parent / name)
        start = " ".join(f'"{part}"' for part in device_bundle.program.command_in("$here"))
        text = f'here=$(dirname "$0")\nreal() {{ {start} "$@"; }}\n{script}\n'
        (folder / "spoiled.sh").write_text(text)
        return replace(
            device_bundle,
            path=folder / device_bundle.path.name,
            files=(*device_bundle.files, "spoiled.sh"),
            start=("sh", "./spoiled.sh"),
        )

    return make


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('real "$@"; exit 3', "model"),
        ('real "$@"; kill -SEGV $$', "signal 11"),
        ("exit 0", "did not write"),
    ],
)
def test_a_runner_that_fails_on_the_device_leaves_no_run_whatever_it_wrote(
    measured: Callable[..., list[Manifest]],
    stored_runs: Callable[[], list[str]],
    spoiled: Callable[[str], RunnerBinary],
    script: str,
    message: str,
):
    """The second and third leave files of the very name that is pulled; only an exit code of 0 counts."""
    with pytest.raises(RunnerError, match=message):
        measured(runner=spoiled(script))
    assert stored_runs() == []


def test_an_output_that_is_not_finite_is_no_measurement_on_a_device(
    measured: Callable[..., list[Manifest]],
    stored_runs: Callable[[], list[str]],
    exported: Callable[[str], ExportedModel],
    tmp_path: Path,
):
    model = exported(VARIANT)
    nan_input = tmp_path / "nan.npy"
    np.save(nan_input, np.full_like(np.load(model.inputs[0]), np.nan))
    with pytest.raises(RunnerError, match=r"not finite|non-finite|NaN"):
        measured(model=replace(model, inputs=[nan_input]))
    assert stored_runs() == []


def test_a_clock_that_jumps_changes_no_duration(
    measured: Callable[..., list[Manifest]], monkeypatch: pytest.MonkeyPatch
):
    """Only steady clocks are used for durations; the moment of a session is a record."""
    import sme2_assets.profiling.session as session

    real = session.datetime

    class Jumping(real):  # type: ignore[valid-type, misc]
        calls = 0

        @classmethod
        def now(cls, tz=None):  # type: ignore[no-untyped-def]
            cls.calls += 1
            return real(2020 + 10 * (cls.calls % 2), 1, 1, tzinfo=tz)

    monkeypatch.setattr(session, "datetime", Jumping)
    [manifest] = measured()
    assert all(process.seconds > 0 for process in manifest.info.processes)
    assert manifest.info.started_at != manifest.info.finished_at
