"""How long kernels are sampled: until samples tell where each product runs, or the limit is reached."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from sme2_assets.profiling import one_pass
from sme2_assets.profiling.arms import Arm, ArmSpec
from sme2_assets.profiling.one_pass import Bench, run_pass
from sme2_assets.profiling.plan import Pace, plan_for


class Device:
    """Stands in for a runner: an inference takes 10 ms, and its rarest operator is met once in 20."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, sme2: str = "on", **wishes: Any):
        self.asked: list[int] = []
        self.said: list[str] = []
        plan = plan_for("hardware", iterations=5, kernel_sampling_s=0.2, **wishes)
        self.arm = Arm(ArmSpec(sme2, sme2), cast(Any, None), cast(Any, None), plan, "run", folder)
        self.bench = cast(Bench, SimpleNamespace(plan=plan, log=self.said.append))
        monkeypatch.setattr(one_pass, "_run_process", self._run)
        monkeypatch.setattr(one_pass, "_unsettled", self._unsettled)

    def _run(self, bench: Bench, arm: Arm, *which: Any) -> Any:
        *_, pass_kind, lengths = which
        iterations = lengths.iterations
        self.asked.append(iterations)
        directory = f"{which[0]}_{pass_kind}"
        (arm.directory / directory).mkdir()
        times = [10_000_000] * iterations
        result = SimpleNamespace(iteration_ns=times, iterations=iterations, pass_kind=pass_kind)
        arm.results.append(cast(Any, result))
        arm.processes.append(cast(Any, SimpleNamespace(directory=directory, pass_kind=pass_kind)))
        return result

    def _unsettled(self, arm: Arm) -> pd.DataFrame:
        sampled = sum(len(each.iteration_ns) for each in arm.results if each.pass_kind == "kernels") // 20
        return pd.DataFrame({"name": ["rare"], "telling_samples": [sampled]}).head(int(sampled < 20))

    def passes(self, *rounds: int) -> None:
        for index in rounds:
            for pass_kind in ("latency", "kernels"):
                run_pass(self.bench, self.arm, index, 0, pass_kind, Pace())


def test_a_pass_is_made_again_with_more_inferences_until_they_tell(monkeypatch, tmp_path):
    device = Device(monkeypatch, tmp_path, kernel_rounds=1)
    device.passes(0)
    assert device.asked == [5, 20, 600], "the latency pass, the first try, and what twenty samples need"
    assert len(device.arm.results) == len(device.arm.processes) == 2, "what was made again is one process"
    assert "Sampling 600 inferences instead of 20" in device.said[0]


def test_the_rounds_before_count_and_only_the_last_is_prolonged(monkeypatch, tmp_path):
    device = Device(monkeypatch, tmp_path, kernel_rounds=2)
    device.passes(0, 1)
    assert device.asked[:4] == [5, 20, 5, 20]
    assert len(device.asked) == 5


def test_what_the_limit_leaves_open_is_said(monkeypatch, tmp_path):
    device = Device(monkeypatch, tmp_path, kernel_rounds=1, kernel_limit_s=2.0)
    device.passes(0)
    assert device.asked == [5, 20, 200], "two seconds of inferences"
    assert device.said[-1].endswith("They stay unknown after 200 sampled inferences, the limit.")


def test_without_sme2_there_is_nothing_to_find_out(monkeypatch, tmp_path):
    device = Device(monkeypatch, tmp_path, sme2="off", kernel_rounds=1)
    device.passes(0)
    assert device.asked == [5, 20]
    assert device.said == []
