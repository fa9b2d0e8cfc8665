"""What is timed when advice is given; what is measured for it is in gate/test_gate.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from sme2_assets import launch
from sme2_assets.experiments.trials import time_changes
from sme2_assets.profiling.arm_requests import ArmsRequest
from sme2_assets.store import Store
from sme2_assets.targets import PLATFORMS, open_target


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
