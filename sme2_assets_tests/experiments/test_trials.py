"""What advice is made from, and what is timed for it; what is measured for it is in gate/test_gate.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sme2_assets import launch
from sme2_assets.defs.assets import advice
from sme2_assets.defs.jobs import advise_job
from sme2_assets.defs.partitions import MODEL_VARIANTS
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.experiments.trials import advise, time_changes
from sme2_assets.gate.take import Taken
from sme2_assets.profiling.arm_requests import ArmsRequest
from sme2_assets.store import Store
from sme2_assets.targets import PLATFORMS, open_target
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.gate.test_judge import facts, operator
from sme2_assets_tests.made.run_folder import MadeRun


def test_changes_are_timed_in_one_session_and_only_where_times_say_something_about_sme2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[ArmsRequest] = []
    monkeypatch.setattr(
        launch, "compare_arms", lambda _lab, _instance, request, _settings, _log: asked.append(request)
    )
    store, told = Store(tmp_path), list[str]()
    # The second differs in two things, which `sme2 compare` would refuse.
    variants = ["toy_cnn-fp16", "toy_cnn.rewrite_linear-int8", "toy_cnn-int8"]
    time_changes(store, variants, None, told.append)
    here = [open_target(name, store) for name in PLATFORMS]
    timed = [it.platform for it in here if it.fidelity == "hardware" and it.availability("off").ok]
    assert [(it.platform, it.factor, [arm.variant for arm in it.arms]) for it in asked] == [
        (name, "change", variants) for name in timed
    ]
    # A device that is not there costs the times, and nothing else.
    time_changes(store, variants, "no_such_device", told.append)
    assert told[-1].startswith("no times: ")


def test_a_device_that_is_not_there_is_told_before_anything_is_measured(tmp_path: Path):
    with pytest.raises(Sme2Error, match=r"no_such_device|adb"):
        advise(Store(tmp_path), "toy_cnn-fp16", print, device="no_such_device")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        # As in the UI: whatever has been measured of this version of the model.
        ({}, {"toy_cnn-fp32", "toy_cnn@rewrite=linear-fp16"}),
        ({"variants": ["toy_cnn-fp32", "toy_cnn-int8"]}, {"toy_cnn-fp32"}),
        ({"variants": []}, set()),
    ],
)
def test_advice_is_about_one_version_of_a_model_and_what_was_tried_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, list[str]], said: set[str]
):
    """At int8 it was measured before the model was edited."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    store, told = Store(tmp_path), list[str]()
    warehouse = Warehouse(store.warehouse)
    measured = {
        "toy_cnn-fp16": (("code", "new"),),
        "toy_cnn-fp32": (("code", "new"),),
        "toy_cnn-int8": (("code", "old"),),
        "toy_cnn.rewrite_linear-fp16": (("code", "new"), ("rewrites", "1")),
    }

    def taken_of(_store: Store, run_id: str) -> Taken:
        [variant] = [it for it in measured if f"-{it}-" in run_id]
        unit = "off" if variant == "toy_cnn-fp16" else "on"
        return Taken(facts(operator(0, macs=9, unit=unit)), {}, made_from=measured[variant])

    monkeypatch.setattr(advice, "taken_of", taken_of)
    with launch.open_instance(store) as instance:
        instance.add_dynamic_partitions(MODEL_VARIANTS, ["toy_cnn-fp16"])
        for variant in measured:
            run = MadeRun(
                variant=variant, platform="emulated", fidelity="emulated", sme2="on", paired=False, arms=1
            )
            run.write(store.runs)
            take_session(store, warehouse, store.run_dir(run.run_id))
            warehouse.publish()
        jobs = launch.Jobs(Lab(data_root=str(tmp_path)), instance, told.append)
        jobs.run(advise_job.name, ["toy_cnn-fp16"], {"advice": {"config": config}})
    changes = json.loads((store.advice / "toy_cnn-fp16.json").read_text())["changes"]
    assert {it["change"] for it in changes} == {"as it is", *said}
    assert all(it["recommended"] for it in changes[1:])
    left_out = [line for line in told if line.startswith("toy_cnn-int8 is left out: ")]
    asked = "toy_cnn-int8" in config.get("variants", measured)
    assert ["other code of the model" in line for line in left_out] == [True] * asked
