"""Running jobs in this process: what is measured here, and what a failure costs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import pytest

from sme2_assets import launch
from sme2_assets.defs.failures import failure_of
from sme2_assets.defs.partitions import MODEL_VARIANTS
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.requests import (
    AUTO,
    ProfileRequest,
    causes_of,
    requests_asked_for,
    requests_for,
    requests_for_this_machine,
)
from sme2_assets.store import Store
from sme2_assets.targets import host
from sme2_assets.toolchain import Availability

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
def on_linux(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is remembered of the machine is forgotten before and after it is another."""
    remembered = (host._lasting_facts, host.host_has_sme2)
    for fact in remembered:
        fact.cache_clear()
    monkeypatch.setattr("platform.system", lambda: "Linux")
    yield
    for fact in remembered:
        fact.cache_clear()


@pytest.fixture
def on_intel(on_linux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86_64 Linux machine."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.fixture
def on_arm(on_linux: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An AArch64 Linux machine without SME2."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("sme2_assets.targets.local.host_has_sme2", lambda: False)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    # No phone, whatever is connected.
    monkeypatch.setenv("SME2_ADB", str(tmp_path / "none"))
    return Lab(data_root=str(tmp_path))


@pytest.mark.usefixtures("on_intel", "emulation")
def test_a_large_model_is_emulated_only_when_somebody_asks_for_it(lab: Lab):
    wanted = requests_for_this_machine(lab.store, ["toy_cnn-fp32", "squeeze_sam-fp32"], BOTH)
    assert wanted.requests == [ProfileRequest("toy_cnn-fp32", "emulated", BOTH)]
    assert any("squeeze_sam-fp32 on emulated is left out" in note for note in wanted.notes)
    with pytest.raises(Sme2Error, match="squeeze_sam-fp32 can only be emulated") as failed:
        requests_for_this_machine(lab.store, ["squeeze_sam-fp32"], BOTH)
    assert "--platform emulated" in str(failed.value.remedy)


@pytest.mark.usefixtures("on_intel", "emulation")
def test_on_another_instruction_set_only_emulation_is_measured_unless_somebody_asks_for_a_reference(lab: Lab):
    wanted = requests_for_this_machine(lab.store, ["toy_cnn-fp32"], BOTH)
    assert [request.platform for request in wanted.requests] == ["emulated"]
    [note] = wanted.notes
    assert "says nothing about SME2" in note
    assert "--platform linux" in note
    asked = requests_for(lab.store, ["toy_cnn-fp32"], "linux", BOTH)
    assert asked.requests == [ProfileRequest("toy_cnn-fp32", "linux", ("off",))]
    assert lab.target("linux").fidelity == "reference"
    with pytest.raises(Sme2Error, match="x86_64 has no SME2"):
        requests_for(lab.store, ["toy_cnn-fp32"], "linux", ("on",))


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("platform", [AUTO, "emulated"])
def test_all_emulated_shapes_are_devices_of_their_own(lab: Lab, platform: str):
    asked = requests_asked_for(lab.store, ["toy_cnn-fp32"], platform, device="emulated:all:256", threads=4)
    assert asked.requests == [
        ProfileRequest("toy_cnn-fp32", "emulated", BOTH, f"emulated:{shape}:256")
        for shape in ("m4", "c1", "max")
    ]


@pytest.mark.usefixtures("on_arm", "emulation")
def test_a_machine_without_sme2_is_measured_in_the_state_it_has_and_says_so(lab: Lab):
    asked = requests_for(lab.store, ["toy_cnn-fp32"], "linux", BOTH)
    assert asked.requests == [ProfileRequest("toy_cnn-fp32", "linux", ("off",))]
    [note] = asked.notes
    assert "linux is measured with SME2 off alone here" in note
    with pytest.raises(Sme2Error, match="linux-sme2_on is not available"):
        requests_for(lab.store, ["toy_cnn-fp32"], "linux", ("on",))


@pytest.mark.usefixtures("on_arm", "no_emulation")
def test_a_platform_that_is_broken_is_left_out_with_its_cause_and_the_others_are_measured(lab: Lab):
    wanted = requests_for_this_machine(lab.store, ["toy_cnn-fp32"], BOTH)
    assert wanted.requests == [ProfileRequest("toy_cnn-fp32", "linux", ("off",))]
    [broken] = wanted.left_out
    assert (broken.what, broken.error.what) == ("emulated", "no compiler can be had.")
    assert "Install one." in str(broken)


@pytest.mark.usefixtures("on_intel", "no_emulation")
def test_where_nothing_can_be_measured_the_cause_is_said(lab: Lab):
    with pytest.raises(Sme2Error, match="no compiler can be had") as failed:
        requests_for_this_machine(lab.store, ["toy_cnn-fp32"], BOTH)
    assert "Install one." in str(failed.value)


class Faults:
    """Stands where jobs are run, and fails for the partitions that it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **broken: str) -> None:
        self.broken = broken
        self.made: list[tuple[str, str]] = []
        monkeypatch.setattr(launch.Jobs, "run", self.run)
        facts = {"session_id": "s", "run_id": "r"}
        monkeypatch.setattr(launch, "_facts_of", lambda result, asset: [facts, facts])

    def run(self, job: str, keys: Sequence[str], ops: object = None, tags: object = None) -> None:
        if self.broken.get(job, "nothing") in keys[0]:
            raise Sme2Error(f"{job} broke.", "Mend it.")
        self.made.append((job, keys[0]))


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
        ({"profile": "emulated"}, {("toy_cnn-fp32", "emulated"), ("toy_cnn-int8", "emulated")}),
        ({"profile": "int8"}, {("toy_cnn-int8", "linux"), ("toy_cnn-int8", "emulated")}),
        ({"profile": "toy_cnn-fp32|linux"}, {("toy_cnn-fp32", "linux")}),
        ({"compare": "toy_cnn-int8|emulated"}, {("toy_cnn-int8", "emulated")}),
    ],
)
def test_what_breaks_costs_only_itself_and_a_cause_is_told_once(
    lab: Lab,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    broken: dict[str, str],
    lost: set[tuple[str, str]],
):
    faults = Faults(monkeypatch, **broken)
    done = launch.profile(lab, instance, REQUESTS, {}, print)
    [left_out] = done.left_out
    assert {(it.request.variant, it.request.platform) for it in done.sessions} | lost == {
        (request.variant, request.platform) for request in REQUESTS
    }
    assert {(request.variant, request.platform) for request in left_out.requests} == lost
    assert "Mend it." in str(left_out)
    compared = {tuple(key.split("|")) for job, key in faults.made if job == "compare"}
    assert compared == {(request.variant, request.platform) for request in REQUESTS} - lost


def test_what_is_lost_on_one_of_several_devices_is_named_after_it():
    failed = ProfileRequest("toy_cnn-fp32", "emulated", BOTH, "emulated:m4:512")
    [left_out] = causes_of({failed: Sme2Error("It crashed.")})
    assert left_out.what == "toy_cnn-fp32 on emulated:m4:512"


@pytest.mark.usefixtures("everything_there")
def test_when_nothing_could_be_measured_that_is_an_error(
    lab: Lab, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    Faults(monkeypatch, profile="toy_cnn")
    with pytest.raises(Sme2Error, match="profile broke"):
        launch.profile(lab, instance, REQUESTS, {}, print)


# A computed bound, which only torch knows.
GROWING = """
import torch

class Net:
    def get_eager_model(self):
        return torch.nn.Linear(4, 2)

    def get_example_inputs(self):
        return (torch.randn(16, 4),)

    def get_dynamic_shapes(self):
        return ({0: torch.export.Dim("seq", min=4, max=2**9)},)
"""


@pytest.mark.usefixtures("everything_there")
@pytest.mark.parametrize(
    ("size", "said"), [("sek_8", "no dimension 'sek'"), ("seq_513", r"seq=513 .* bounds, 4 to 512")]
)
def test_a_mistyped_size_leaves_no_partition_and_no_run(
    lab: Lab,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: str,
    said: str,
):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "growing.py").write_text(GROWING)
    monkeypatch.setenv("SME2_MODELS", str(tmp_path / "nets"))
    request = ProfileRequest(f"growing.size_{size}-fp32", "linux", BOTH)
    with pytest.raises(Sme2Error, match=said):
        launch.profile(lab, instance, [request], {}, print)
    with pytest.raises(Sme2Error, match=said):
        launch.measure_trial(lab, instance, request, {}, print)
    assert list(instance.get_dynamic_partitions(MODEL_VARIANTS)) == []
    assert list(instance.get_runs()) == []


def test_a_run_that_a_check_stops_fails_with_what_the_check_found():
    @dg.asset
    def made() -> None: ...

    @dg.multi_asset_check(specs=[dg.AssetCheckSpec("right", asset=made, blocking=True)])
    def checks_of_made():
        yield dg.AssetCheckResult(passed=False, check_name="right", asset_key="made", description="9.0 dB")

    done = dg.Definitions(
        assets=[made], asset_checks=[checks_of_made]
    ).resolve_implicit_global_asset_job_def()
    result = done.execute_in_process(raise_on_error=False)
    assert failure_of(result.all_events, result.run_id).what == "The check right of made failed: 9.0 dB"


def test_each_data_folder_has_an_instance_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    homes = []
    for name in ("one", "two"):
        with launch.open_instance(Store(tmp_path / name)) as instance:
            homes.append(Path(instance.root_directory))
    assert homes == [tmp_path / name / "dagster_home" for name in ("one", "two")]
    assert "DAGSTER_HOME" not in os.environ


def test_no_partition_is_made_for_a_name_that_is_no_model(tmp_path: Path, emulation: None):
    requests = [ProfileRequest(name, "emulated", BOTH) for name in ("../../evil-fp32", "nope-fp32")]
    with launch.open_instance(Store(tmp_path)) as instance:
        with pytest.raises(Sme2Error, match="evil"):
            launch.profile(Lab(data_root=str(tmp_path)), instance, requests, {}, print)
        assert instance.get_dynamic_partitions("model_variants") == []
