"""Running assets in this process: what is measured here, and what happens when others are at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pytest

from sme2_assets import launch
from sme2_assets.errors import Sme2Error
from sme2_assets.launch import ProfileRequest, requests_for, requests_for_this_machine, wait_for_slot
from sme2_assets.partitions import BUSY_POOL
from sme2_assets.resources import Lab
from sme2_assets.store import Store
from sme2_assets.targets import host
from sme2_assets.targets.base import Availability


def test_a_full_pool_is_waited_for_and_the_run_that_holds_it_is_named(tmp_path: Path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots(BUSY_POOL, 1)
        held = storage.claim_concurrency_slot(BUSY_POOL, run_id="another-run", step_key="etdump_traces")
        assert held.is_claimed
        lines: list[str] = []

        def log(line: str) -> None:
            lines.append(line)
            threading.Timer(0.2, storage.free_concurrency_slots_for_run, ["another-run"]).start()

        wait_for_slot(Store(tmp_path / "data"), instance, log)
        assert lines == ["waiting for run another-run to end"]
        assert storage.get_concurrency_info(BUSY_POOL).active_slot_count == 0


def test_an_instance_without_a_pool_is_not_waited_for(tmp_path: Path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        wait_for_slot(Store(tmp_path / "data"), instance, log=print)


BOTH = ("off", "on")


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with everything that emulation takes."""
    monkeypatch.setattr(
        "sme2_assets.targets.local.EmulatedTarget.availability", lambda self, sme2: Availability(True, "")
    )


@pytest.fixture
def no_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sme2_assets.targets.local.EmulatedTarget.availability",
        lambda self, sme2: Availability(False, "no compiler can be had.", "Install one."),
    )


@pytest.fixture
def on_intel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An x86_64 Linux machine."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    host._lasting_facts.cache_clear()
    host.host_has_sme2.cache_clear()
    yield
    host._lasting_facts.cache_clear()
    host.host_has_sme2.cache_clear()


@pytest.fixture
def on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An AArch64 Linux machine without SME2."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("sme2_assets.targets.local.host_has_sme2", lambda: False)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    # No phone, whatever is connected.
    monkeypatch.setenv("SME2_ADB", str(tmp_path / "none"))
    return Lab(data_root=str(tmp_path))


@pytest.mark.usefixtures("on_intel", "emulation")
def test_a_large_model_is_emulated_only_when_somebody_asks_for_it(lab: Lab):
    wanted = requests_for_this_machine(lab, ["toy_cnn-fp32", "squeeze_sam-fp32"], BOTH)
    assert wanted.requests == [ProfileRequest("toy_cnn-fp32", "emulated", BOTH)]
    assert any("squeeze_sam-fp32 on emulated is left out" in note for note in wanted.notes)
    with pytest.raises(Sme2Error, match="squeeze_sam-fp32 can only be emulated") as failed:
        requests_for_this_machine(lab, ["squeeze_sam-fp32"], BOTH)
    assert "--platform emulated" in str(failed.value.remedy)


@pytest.mark.usefixtures("on_intel", "emulation")
def test_on_another_instruction_set_only_emulation_is_measured_unless_somebody_asks_for_a_reference(lab: Lab):
    wanted = requests_for_this_machine(lab, ["toy_cnn-fp32"], BOTH)
    assert [request.platform for request in wanted.requests] == ["emulated"]
    [note] = wanted.notes
    assert "says nothing about SME2" in note
    assert "--platform linux" in note
    asked = requests_for(lab, ["toy_cnn-fp32"], "linux", BOTH)
    assert asked.requests == [ProfileRequest("toy_cnn-fp32", "linux", ("off",))]
    assert lab.target("linux").fidelity == "reference"
    with pytest.raises(Sme2Error, match="x86_64 has no SME2"):
        requests_for(lab, ["toy_cnn-fp32"], "linux", ("on",))


@pytest.mark.usefixtures("on_arm", "no_emulation")
def test_a_platform_that_is_broken_is_left_out_with_its_cause_and_the_others_are_measured(lab: Lab):
    wanted = requests_for_this_machine(lab, ["toy_cnn-fp32"], BOTH)
    assert wanted.requests == [ProfileRequest("toy_cnn-fp32", "linux", ("off",))]
    [broken] = wanted.left_out
    assert (broken.what, broken.error.what) == ("emulated", "no compiler can be had.")
    assert "Install one." in str(broken)


@pytest.mark.usefixtures("on_intel", "no_emulation")
def test_where_nothing_can_be_measured_the_cause_is_said(lab: Lab):
    with pytest.raises(Sme2Error, match="no compiler can be had") as failed:
        requests_for_this_machine(lab, ["toy_cnn-fp32"], BOTH)
    assert "Install one." in str(failed.value)


class Faults:
    """Stands where assets are materialised, and fails for the partitions that it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **broken: str) -> None:
        self.broken = broken
        self.made: list[tuple[str, str]] = []
        monkeypatch.setattr(launch._Launcher, "materialise", self.materialise)
        facts = {"session_id": "s", "run_id": "r"}
        monkeypatch.setattr(launch, "_facts_of", lambda result, asset: [facts, facts])

    def materialise(self, assets: Sequence[str], keys: Sequence[str], ops: object = None) -> None:
        if self.broken.get(assets[0], "nothing") in keys[0]:
            raise Sme2Error(f"{assets[0]} broke.", "Mend it.")
        self.made.append((assets[0], keys[0]))


REQUESTS = [
    ProfileRequest(variant, platform, BOTH)
    for platform in ("linux", "emulated")
    for variant in ("toy_cnn-fp32", "toy_cnn-int8")
]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    folder = tmp_path / "dagster"
    folder.mkdir()
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        yield instance


@pytest.fixture
def everything_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sme2_assets.targets.base.Target.require", lambda self, sme2: None)


@pytest.mark.usefixtures("everything_there")
@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ({"runner_binary": "emulated"}, {("toy_cnn-fp32", "emulated"), ("toy_cnn-int8", "emulated")}),
        ({"exported_model": "int8"}, {("toy_cnn-int8", "linux"), ("toy_cnn-int8", "emulated")}),
        ({"etdump_traces": "toy_cnn-fp32|linux"}, {("toy_cnn-fp32", "linux")}),
        ({"sme2_comparison": "toy_cnn-int8|emulated"}, {("toy_cnn-int8", "emulated")}),
    ],
)
def test_what_breaks_costs_only_what_hangs_on_it(
    lab: Lab,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    broken: dict[str, str],
    lost: set[tuple[str, str]],
):
    faults = Faults(monkeypatch, **broken)
    lines: list[str] = []
    done = launch.profile(lab, instance, REQUESTS, {}, lines.append)
    [left_out] = done.left_out
    assert {(it.request.variant, it.request.platform) for it in done.sessions} | lost == {
        (request.variant, request.platform) for request in REQUESTS
    }
    assert {(request.variant, request.platform) for request in left_out.requests} == lost
    assert str(left_out) in lines
    assert "Mend it." in str(left_out)
    compared = {tuple(key.split("|")) for asset, key in faults.made if asset == "sme2_comparison"}
    assert compared == {(request.variant, request.platform) for request in REQUESTS} - lost
    # Nothing is exported or measured for the sake of what is lost already.
    if "runner_binary" in broken:
        assert not any("emulated" in key for asset, key in faults.made)


@pytest.mark.usefixtures("everything_there")
def test_when_nothing_could_be_measured_that_is_an_error(
    lab: Lab, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    Faults(monkeypatch, exported_model="toy_cnn")
    with pytest.raises(Sme2Error, match="exported_model broke"):
        launch.profile(lab, instance, REQUESTS, {}, print)
