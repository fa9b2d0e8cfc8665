"""What is asked to be compared, before anything is exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sme2_assets import launch
from sme2_assets.cli import main
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling import arm_requests, requests
from sme2_assets.profiling.arm_requests import ArmRequest, ArmsRequest, arms_of, places_of
from sme2_assets.profiling.limits import MOST_INFERENCES, MOST_ROUNDS, MOST_THREADS
from sme2_assets.profiling.requests import require_room
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.host import host_facts, host_platform
from sme2_assets_tests.e2e.conftest import make_data_folder

FP16, INT8 = "toy_cnn-fp16", "toy_cnn-int8"
MORE = host_facts().cores + 1


@pytest.mark.parametrize(
    ("asked", "factor", "arms"),
    [
        ({"variants": [FP16, INT8]}, "precision", 2),
        ({"variants": ["toy_cnn-fp32", FP16, INT8]}, "precision", 3),
        ({"variants": [FP16, "mobilenet_v3_small-fp16"]}, "model", 2),
        ({"variants": ["squeeze_sam-fp16", "squeeze_sam.size_256-fp16"]}, "option", 2),
        ({"variants": [FP16], "threads": [1, 2, 4]}, "threads", 3),
        ({"variants": [FP16], "cpus": ["0", "1"]}, "cpus", 2),
        ({"variants": [FP16], "power": ["boost", "app"]}, "power", 2),
        ({"variants": [FP16], "sme2": ["off", "on"]}, "sme2", 2),
        ({"variants": [FP16], "executorch": ["1.5.0", "1.5.1"]}, "executorch", 2),
    ],
)
def test_the_one_thing_that_arms_differ_in_is_their_factor(asked, factor, arms):
    found, made = arms_of(**asked)
    assert (found, len(made)) == (factor, arms)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([FP16, INT8, "--threads", "1,2"], ["precision (fp16, int8)", "threads (1, 2)"]),
        ([FP16, "mobilenet_v3_small-int8"], ["model (toy_cnn, mobilenet_v3_small)", "precision"]),
        ([FP16, "--threads", "1,2", "--cpus", "0", "--cpus", "1"], ["threads (1, 2)", "cpus (0, 1)"]),
        ([FP16, "--sme2", "off,on", "--threads", "1,2"], ["threads (1, 2)", "sme2 (off, on)"]),
        ([FP16, "--executorch", "1.5.0,1.5.1", "--threads", "1,2"], ["threads (1, 2)", "executorch (1.5.0"]),
        ([FP16, "--executorch", "1.4.1,1.5.1"], ["ExecuTorch 1.4.1 has no C++ libraries", "1.5.0 or newer"]),
        ([FP16, "--executorch", "1.5.0,1.5.1", "--runner", "source"], ["version of its checkout"]),
        ([FP16, INT8, "--executorch", "1.5.0"], ["All arms have ExecuTorch 1.5.0", "differ in precision"]),
        ([FP16], ["nothing to compare"]),
        ([FP16, FP16], ["nothing to compare"]),
        ([FP16, "--threads", "2,2"], ["nothing to compare"]),
        ([FP16, INT8, "--threads", "1,1"], ["4 arms, of which only 2 differ", "once."]),
        (
            [FP16, "--threads", ",".join(map(str, range(1, 28)))],
            ["There are 27 arms: more than 26 are not measured", "Give fewer"],
        ),
        ([FP16, "no_such_model-fp16"], ["There is no model 'no_such_model'"]),
        ([FP16, "toy_cnn-fp12"], ["fp12"]),
        ([FP16, "missing.pte"], ["missing.pte"]),
        ([FP16, INT8, "--platform", "linux", "--power", "app"], ["no power modes"]),
        (["20260101T000000-aaaaaa-x", "20260101T000000-aaaaaa-y"], ["no run '20260101T000000-aaaaaa-x'"]),
    ],
)
def test_what_gives_no_verdict_is_refused_before_anything_is_made(tmp_path: Path, words, said):
    told = CliRunner().invoke(main, ["--data", str(tmp_path / "data"), "compare", *words])
    assert told.exit_code == 1, told.output
    for part in said:
        assert part in told.output
    assert "What to do:" in told.output
    assert not list(tmp_path.glob("data/artifacts/*/*")), "nothing was exported or built"
    assert not (tmp_path / "data" / "runs").exists()


@pytest.mark.skipif(host_platform() != "linux", reason="names the platform linux")
def test_threads_beyond_the_cpus_are_refused_where_they_are_timed(tmp_path: Path):
    words = ["scale", FP16, "--threads", f"1,{MORE}", "--platform", "linux"]
    told = CliRunner().invoke(main, ["--data", str(tmp_path / "data"), *words])
    assert told.exit_code == 1
    assert f"{MORE} threads do not fit on {MORE - 1} CPU" in told.output
    assert f"at most {MORE - 1}" in told.output
    with pytest.raises(Sme2Error, match="2 threads do not fit on 1 CPU of"):
        require_room(open_target("linux", Store(tmp_path)), 2, "0")
    words = ["profile", FP16, "--threads", str(MORE), "--platform", "linux"]
    told = CliRunner().invoke(main, ["--data", str(tmp_path / "data"), *words])
    assert told.exit_code == 1
    assert f"{MORE} threads do not fit on {MORE - 1} CPU" in told.output
    assert not list(tmp_path.glob("data/artifacts/*/*")), "nothing was exported or built"
    experiment = tmp_path / "mine.yaml"
    experiment.write_text(f"models: {FP16}\nplatforms: linux\nsme2: off\nthreads: {MORE}\n")
    told = CliRunner().invoke(main, ["--data", str(tmp_path / "data"), "config", "check", str(experiment)])
    assert told.exit_code == 1
    assert f"{MORE} threads do not fit on {MORE - 1} CPU" in told.output


@pytest.mark.skipif(host_platform() != "linux", reason="emulates on Linux alone")
def test_threads_that_are_not_timed_may_share_cpus(tmp_path: Path):
    emulated = open_target("emulated", Store(tmp_path))
    require_room(emulated, MORE)
    with pytest.raises(Sme2Error, match="CPUs cannot be chosen on emulated"):
        require_room(emulated, 1, "0")


@pytest.mark.parametrize(
    "words",
    [
        ["compare", FP16, "--threads", "1,²"],
        ["compare", FP16, "--threads", "1," + "9" * 5000],
        ["profile", FP16, "--threads", str(MOST_THREADS + 1)],
        ["profile", FP16, "--sizes", "seq=²"],
        ["profile", FP16, "--rounds", str(MOST_ROUNDS + 1)],
        ["compare", FP16, INT8, "--rounds", "100000000000"],
        ["profile", FP16, "--runs", str(MOST_INFERENCES + 1)],
        ["run", "x.yaml", "--rounds", str(MOST_ROUNDS + 1)],
    ],
)
def test_numbers_that_are_none_or_too_large_are_a_wrong_command_line(tmp_path: Path, words: list[str]):
    told = CliRunner().invoke(main, ["--data", str(tmp_path), *words])
    assert told.exit_code == 2, told.output


def test_thread_counts_of_a_scale_are_of_one_model(tmp_path: Path):
    told = CliRunner().invoke(main, ["--data", str(tmp_path), "scale", "toy_cnn", "--threads", "1"])
    assert told.exit_code == 1
    assert "toy_cnn means 3 variants" in told.output
    told = CliRunner().invoke(main, ["--data", str(tmp_path), "scale", FP16, "--threads", "1,x"])
    assert told.exit_code == 2


@pytest.mark.skipif(host_platform() != "linux", reason="names the platform linux")
@pytest.mark.parametrize("aa", [False, True])
def test_threads_beyond_the_cpus_are_refused_whoever_asks_for_them(
    tmp_path: Path,
    artifacts_dir: Path,
    runner_binary: RunnerBinary,
    exported: Callable[[str], ExportedModel],
    monkeypatch: pytest.MonkeyPatch,
    aa: bool,
):
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    monkeypatch.setenv("DAGSTER_HOME", str(store.dagster_home))
    request = requests.ProfileRequest(exported(FP16).variant, "linux", ("off",))
    with launch.open_instance(store) as instance, pytest.raises(Sme2Error, match="threads do not fit on"):
        launch.profile(Lab(data_root=str(store.root)), instance, [request], {"threads": MORE}, print, aa=aa)


@pytest.mark.skipif(host_platform() != "linux", reason="has no Mac")
def test_what_was_measured_is_shown_when_another_platform_fails(
    tmp_path: Path,
    artifacts_dir: Path,
    runner_binary: RunnerBinary,
    exported: Callable[[str], ExportedModel],
    monkeypatch: pytest.MonkeyPatch,
):
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    monkeypatch.setenv("DAGSTER_HOME", str(store.dagster_home))
    arms = tuple(ArmRequest(exported(name).variant, sme2="off") for name in (FP16, INT8))
    wanted = [ArmsRequest("precision", arms, name) for name in ("linux", "mac")]
    monkeypatch.setattr(arm_requests, "places_of", lambda *_: (wanted, [], []))
    words = ["compare", FP16, INT8, "--rounds", "1", "--runs", "2", "--warmup", "0", "--json"]
    told = CliRunner().invoke(main, ["--data", str(store.root), *words])
    assert told.exit_code == 1
    assert [it["platform"] for it in json.loads(told.stdout)] == ["linux"]
    [line] = [line for line in told.stderr.splitlines() if line.startswith("mac was left out: ")][-1:]
    assert "mac-sme2_off is not available here" in line, told.stderr
    del wanted[0]
    told = CliRunner().invoke(main, ["--data", str(store.root), *words])
    assert told.exit_code == 1
    assert "mac-sme2_off is not available here" in told.stderr
    assert "mac was left out" not in told.stderr


@pytest.mark.skipif(not host_platform(), reason="no native platform on this host")
def test_all_arms_have_one_state_of_sme2(tmp_path: Path):
    factor, arms = arms_of([FP16, INT8])
    places, _, _ = places_of(Store(tmp_path), arms, factor, host_platform())
    assert [place.platform for place in places] == [host_platform()]
    assert len({arm.sme2 for arm in places[0].arms}) == 1
    assert all(arm.sme2 in ("off", "on") for arm in places[0].arms)


def test_models_that_no_platform_here_measures_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on a host of another instruction set: it emulates, and what is large only if it is asked to."""
    only_emulated = requests.Here({"emulated": ("off", "on")}, [], [])
    monkeypatch.setattr(requests, "platforms_here", lambda *given: only_emulated)
    factor, arms = arms_of([FP16, "squeeze_sam-fp16"])
    with pytest.raises(Sme2Error, match="no platform here that measures all") as raised:
        places_of(Store(tmp_path), arms, factor)
    assert "--platform emulated" in str(raised.value.remedy)
