"""An experiment becomes sessions, each once, and everything they need is looked at before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sme2_assets.defs.resources import Lab
from sme2_assets.diagnostics.experiment import check_experiment, require
from sme2_assets.errors import Sme2Error
from sme2_assets.experiments.load import Loaded, parsed
from sme2_assets.experiments.plan import Planned, chosen_of, planned, work_of
from sme2_assets.experiments.run import link_program, output_names
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.registry import model_spec
from sme2_assets.targets.host import host_has_sme2, host_platform


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SME2_MODELS", raising=False)
    return Lab(data_root=str(tmp_path / "data"))


def of(document: dict[str, Any], folder: Path) -> Loaded:
    return Loaded(folder / "x.yaml", parsed(document, "x.yaml"))


def plan_of(document: dict[str, Any], lab: Lab) -> Planned:
    plan = planned(of(document, lab.store.root.parent), lab)
    assert plan.problems == []
    return plan


def test_models_platforms_and_threads_are_a_product(lab: Lab):
    plan = plan_of(
        {
            "models": ["toy_cnn", "mobilenet_v3_small-int8"],
            "precisions": ["fp32", "fp16"],
            "platforms": ["linux", "emulated"],
            "threads": [1, 2],
            "sme2": "off",
        },
        lab,
    )
    assert len(plan.sessions) == 3 * 2 * 2
    assert {session.variant for session in plan.sessions} == {
        "toy_cnn-fp32",
        "toy_cnn-fp16",
        "mobilenet_v3_small-int8",
    }
    assert plan.shown == [], "one state is no comparison"


def test_the_same_work_of_several_entries_is_done_once(lab: Lab):
    plan = plan_of(
        {
            "platforms": "linux",
            "rounds": 2,
            "entries": [
                {"name": "a", "models": "toy_cnn-fp32"},
                {"name": "b", "models": "toy_cnn", "precisions": "fp32", "threads": [1, 2]},
            ],
        },
        lab,
    )
    assert [(it.entries, it.threads) for it in plan.sessions] == [(("a", "b"), 1), (("b",), 2)]


def test_every_session_has_its_own_folder_named_after_what_tells_it_from_the_others(lab: Lab):
    entries = [{}, {"sme2": "on"}, {"sme2": "on", "timeout_s": 5}]
    document = {"models": "toy_cnn-fp16", "platforms": "emulated", "entries": entries}
    assert list(output_names(plan_of(document, lab).sessions).values()) == [
        "toy_cnn-fp16-emulated-t1-sme2_off_on-timeout_s_default",
        "toy_cnn-fp16-emulated-t1-sme2_on-timeout_s_default",
        "toy_cnn-fp16-emulated-t1-sme2_on-timeout_s_5.0",
    ]
    devices = [{"name": "android", "device": device} for device in ("a:b", "a/b", "A_b", "x" * 300)]
    names = output_names(plan_of({"models": "toy_cnn-fp16", "platforms": devices}, lab).sessions)
    assert len({name.lower() for name in names.values()}) == len(devices)
    assert max(map(len, names.values())) < 255


def test_emulated_sessions_take_no_numbers_of_times(lab: Lab):
    plan = plan_of({"models": "toy_cnn-fp32", "platforms": ["linux", "emulated"], "rounds": 7}, lab)
    assert [session.wishes.get("rounds") for session in plan.sessions] == [7, None]
    assert any("mean nothing" in note for note in plan.notes)


def test_devices_cpus_power_and_passes_reach_the_assets(lab: Lab):
    android = {"name": "android", "device": "any", "cpus": "prime", "power": "boost"}
    document = {"models": "toy_cnn-fp32", "platforms": android, "passes": ["latency", "etdump"]}
    [session] = plan_of(document, lab).sessions
    assert session.wishes == {
        "threads": 1,
        "kernel_rounds": 0,
        **{key: value for key, value in android.items() if key != "name"},
    }


def test_a_runner_from_source_and_the_kind_of_core_reach_the_assets(lab: Lab):
    mac = {"name": "mac", "qos": "utility"}
    document = {"models": "toy_cnn-fp32", "platforms": mac, "runner": "source"}
    [session] = plan_of(document, lab).sessions
    assert session.wishes == {"threads": 1, "qos": "utility", "runner": "source"}
    assert session.title == "toy_cnn-fp32 on mac, 1 thread, qos utility"


def test_only_what_is_named_is_measured(lab: Lab):
    arms = {"off": "baseline", "on": "fast"}
    entries = [{"name": "a", "arms": arms}, {"name": "b", "threads": 2}]
    plan = plan_of({"models": "toy_cnn-fp32", "platforms": "linux", "entries": entries}, lab)
    for name, threads in (("a", 1), ("fast", 1), ("b", 2)):
        chosen = chosen_of(plan, [name])
        assert [it.threads for it in chosen.sessions] == [threads]
        assert [it.session for it in chosen.shown] == chosen.sessions
    assert chosen_of(plan, ["a", "b"]).sessions == plan.sessions
    with pytest.raises(Sme2Error, match="called 'fats'"):
        chosen_of(plan, ["fats"])


def test_the_work_is_told_before_it_is_done(lab: Lab):
    document = {"models": "toy_cnn-fp32", "platforms": "linux", "rounds": 3}
    [session] = plan_of(document, lab).sessions
    work = work_of(session, lab, seconds_per_round=2.0)
    # Two states; kernels in the first two rounds only.
    assert (work.rounds, work.processes, work.seconds) == ((3, 3), (16, 16), (6.0, 6.0))
    [session] = plan_of({"models": "toy_cnn-fp32", "platforms": "linux"}, lab).sessions
    assert work_of(session, lab, seconds_per_round=10.0).seconds == (100.0, 120.0)
    assert work_of(session, lab).seconds is None


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"models": ["toy_cn"]}, "models[0]: There is no model 'toy_cn' (did you mean 'toy_cnn'?)"),
        ({"models": "toy_cnn", "precisions": ["int4"]}, "toy_cnn is not offered at int4"),
        ({"models": "toy_cnn-int4"}, "'int4' is not a precision of 'toy_cnn'"),
        ({"models": "none.pte"}, "none.pte cannot be read: No such file"),
        (
            {"models": "toy_cnn", "comparisons": [{"threads": 9}]},
            "comparisons[0]: compares nothing: no session",
        ),
        (
            {"models": "toy_cnn", "sme2": "off", "comparisons": [{"model": "toy_cnn"}]},
            "only one state of SME2 is measured there",
        ),
        ({"models": "toy_cnn", "entries": [{"models": "x.pte"}]}, "entries[0].models[0]: "),
    ],
)
def test_what_cannot_be_measured_is_told(lab: Lab, document: dict[str, Any], problem: str):
    plan = planned(of({"platforms": "linux", **document}, lab.store.root.parent), lab)
    assert problem in "\n".join(map(str, plan.problems))


def test_a_file_that_is_no_program_is_told(lab: Lab):
    folder = lab.store.root.parent
    (folder / "words.pte").write_bytes(b"x" * 100)
    plan = planned(of({"models": "words.pte", "platforms": "linux"}, folder), lab)
    assert "is not an ExecuTorch program" in str(plan.problems[0])


def test_a_program_is_known_by_its_name_and_never_mistaken_for_another(
    lab: Lab, exported: Callable[[str], ExportedModel]
):
    folder = lab.store.root.parent
    pte = folder / "mine.pte"
    pte.write_bytes(exported("toy_cnn-fp32").pte.read_bytes())
    [session] = plan_of({"models": "./mine.pte", "platforms": "linux", "sme2": "off"}, lab).sessions
    assert (session.variant, session.program) == ("mine-as_is", pte.resolve())
    assert not (lab.store.root / "models").exists(), "planning writes nothing"
    link_program(lab.store, pte.resolve())
    link_program(lab.store, pte.resolve())
    assert model_spec("mine").place == str(lab.store.root / "models" / "mine.pte")
    assert plan_of({"models": ["mine", "./mine.pte"], "platforms": "linux"}, lab).sessions

    other = folder / "elsewhere"
    other.mkdir()
    (other / "mine.pte").write_bytes(pte.read_bytes())
    for text, problem in (
        ("elsewhere/mine.pte", "there is already one"),
        ("toy_cnn.pte", "there is already one"),
    ):
        (folder / "toy_cnn.pte").write_bytes(pte.read_bytes())
        [found] = planned(of({"models": text, "platforms": "linux"}, folder), lab).problems
        assert problem in found.what
    (lab.store.root / "models" / "mine.pte").unlink()
    (lab.store.root / "models" / "mine.pte").write_bytes(b"precious")
    with pytest.raises(Sme2Error, match="not the same file"):
        link_program(lab.store, pte.resolve())
    assert (lab.store.root / "models" / "mine.pte").read_bytes() == b"precious"


def test_two_programs_of_one_name_are_told_before_one_takes_the_place_of_the_other(
    lab: Lab, exported: Callable[[str], ExportedModel]
):
    folder = lab.store.root.parent
    for name, precision in (("pa", "fp32"), ("pb", "fp16")):
        (folder / name).mkdir()
        (folder / name / "net.pte").write_bytes(exported(f"toy_cnn-{precision}").pte.read_bytes())
    document = {"models": ["pa/net.pte", "./pa/net.pte", "pb/net.pte"], "platforms": "linux"}
    [found] = planned(of(document, folder), lab).problems
    assert found.place == ("models", 2)
    assert f"{folder / 'pb' / 'net.pte'} would be the model 'net', as would {folder / 'pa'}" in found.what
    assert "Rename one of them" in (found.remedy or "")
    # One file by two paths is one program.
    assert len(plan_of({**document, "models": document["models"][:2]}, lab).sessions) == 1


def test_a_program_is_never_run_with_what_belongs_to_an_earlier_one(lab: Lab):
    for name, files in (("pa", ["net.etrecord", "net.ptd", "net.input_0.npy"]), ("pb", ["net.input_0.npy"])):
        (lab.store.root.parent / name).mkdir()
        for file in ("net.pte", *files):
            (lab.store.root.parent / name / file).write_text(name)
        link_program(lab.store, lab.store.root.parent / name / "net.pte")
        there = sorted((lab.store.root / "models").iterdir())
        assert [it.name for it in there] == sorted(["net.pte", *files])
        assert {it.read_text() for it in there} == {name}


def test_checks_pass_where_everything_is_there_and_name_what_is_not(lab: Lab):
    host = host_platform()
    if host is None or host_has_sme2():
        pytest.skip("needs a native platform without SME2")
    folder = lab.store.root.parent
    good = of({"models": "toy_cnn-fp32", "platforms": host, "sme2": "off", "output": "out"}, folder)
    made = check_experiment(good, planned(good, lab), lab)
    assert made.ok, made
    assert {"file", "model toy_cnn-fp32", f"{host}, SME2 off", "C++ compiler", "disk", "output"} <= {
        step.name for step in made.steps
    }
    bad = of({"models": ["toy_cnn-fp32", "toy_cn"], "platforms": host, "output": "x.yaml/out"}, folder)
    (folder / "x.yaml").write_text("")
    made = check_experiment(bad, planned(bad, lab), lab)
    failed = {step.name: step for step in made.failed}
    assert set(failed) == {"models[1]", f"{host}, SME2 on", "output"}
    assert "sme2: off" in str(failed[f"{host}, SME2 on"].remedy)
    assert all(step.remedy for step in failed.values())
    with pytest.raises(Sme2Error, match="nothing was measured") as caught:
        require(made, "x.yaml")
    assert all(name in str(caught.value) for name in failed)
    assert not lab.store.root.exists(), "checking writes nothing"


DOCUMENTS = st.fixed_dictionaries(
    {
        "models": st.sampled_from(
            ["toy_cnn", ["mobilenet_v3_small-int8", "toy_cnn-fp16"], "nothing", "no.pte"]
        )
    },
    optional={
        "platforms": st.lists(st.sampled_from(["linux", "mac", "emulated", "auto"]), min_size=1, unique=True),
        "sme2": st.sampled_from(["both", "on", "off"]),
        "threads": st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
        "rounds": st.integers(1, 40),
        "warmup": st.integers(0, 200),
        "entries": st.just([{"threads": 3}, {"models": "toy_cnn-int8"}]),
        "comparisons": st.just([{"model": "toy_cnn"}]),
    },
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=DOCUMENTS)
def test_any_experiment_is_planned_and_checked_without_a_defect(lab: Lab, document: dict[str, Any]):
    loaded = of(document, lab.store.root.parent)
    plan = planned(loaded, lab)
    assert len(set(plan.sessions)) == len(plan.sessions)
    assert {it.session for it in plan.shown} <= set(plan.sessions)
    for session in plan.sessions:
        assert work_of(session, lab).processes[0] >= len(session.states) * 2
    assert check_experiment(loaded, plan, lab).steps[0].ok
