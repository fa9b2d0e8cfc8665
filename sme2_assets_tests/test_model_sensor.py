"""Models become partitions without a restart, are exported on arrival, and leave cleanly."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from sme2_assets.definitions import defs
from sme2_assets.defs import model_sensor
from sme2_assets.defs.model_sensor import MOST_EXPORTS_PER_TICK, model_variants_sensor
from sme2_assets.defs.partitions import MODEL_VARIANTS, RANGE_END, RANGE_START, parse_run_key, run_key
from sme2_assets.defs.resources import Lab
from sme2_assets.models.brought import template
from sme2_assets.targets import TARGETS


class Daemon:
    """Ticks the sensor against an instance as Dagster's daemon does: partitions first, then runs."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.cursor: str | None = None

    @property
    def partitions(self) -> set[str]:
        return set(self.instance.get_dynamic_partitions(MODEL_VARIANTS))

    def tick(self) -> list[str]:
        """The partitions whose export was asked for."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, definitions=defs, resources={"lab": Lab()}
        )
        result = model_variants_sensor(context)
        self.cursor = context.cursor
        if isinstance(result, dg.SkipReason):
            return []
        assert isinstance(result, dg.SensorResult)
        for request in result.dynamic_partitions_requests or []:
            assert request.partitions_def_name == MODEL_VARIANTS
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(MODEL_VARIANTS, list(request.partition_keys))
            else:
                for key in request.partition_keys:
                    self.instance.delete_dynamic_partition(MODEL_VARIANTS, key)
        runs = result.run_requests or []
        assert all(run.asset_selection == [dg.AssetKey("exported_model")] for run in runs)
        exported = [parse_run_key(run.tags[RANGE_START])[0] for run in runs]
        assert set(exported) <= self.partitions
        assert len({run.run_key for run in runs}) == len(runs)
        return exported


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of these tests are not about how long a model must have been left alone."""
    monkeypatch.setattr(model_sensor, "TICKS_AT_REST", 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.delenv("SME2_MODELS", raising=False)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def daemon(folder: Path) -> Daemon:
    return Daemon(dg.DagsterInstance.ephemeral())


def bring(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text(template(name))


def variants_of(name: str) -> list[str]:
    return [f"{name}-{precision}" for precision in ("fp32", "fp16", "int8")]


def test_what_comes_with_the_package_becomes_partitions_but_is_not_exported(daemon: Daemon) -> None:
    assert daemon.tick() == []
    assert {"toy_cnn-fp16", "mobilenet_v3_small-int8"} <= daemon.partitions
    assert not any(key.startswith(("executorch.", "hf.")) for key in daemon.partitions)


def test_a_model_that_is_brought_becomes_partitions_and_is_exported_once(
    daemon: Daemon, folder: Path
) -> None:
    daemon.tick()
    bring(folder, "mine")
    assert daemon.tick() == variants_of("mine")
    assert set(variants_of("mine")) <= daemon.partitions
    assert daemon.tick() == []


def test_a_model_whose_code_changes_is_exported_again(daemon: Daemon, folder: Path) -> None:
    bring(folder, "mine")
    daemon.tick()
    (folder / "mine.py").write_text(template("mine") + "\n# changed\n")
    assert daemon.tick() == variants_of("mine")
    bring(folder, "mine")
    assert daemon.tick() == variants_of("mine"), "changed back: the current export has to follow"
    assert daemon.tick() == []


def test_a_model_that_is_being_written_is_exported_when_it_is_left_alone(
    daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_sensor, "TICKS_AT_REST", 3)
    bring(folder, "mine")
    for line in range(6):
        assert daemon.tick() == []
        (folder / "mine.py").write_text(template("mine") + f"\n# line {line}\n")
    assert daemon.partitions >= set(variants_of("mine")), "it can be measured at once"
    assert [daemon.tick() for _ in range(4)] == [[], [], variants_of("mine"), []]


def test_a_model_that_is_removed_or_renamed_leaves_no_partition(daemon: Daemon, folder: Path) -> None:
    bring(folder, "mine")
    bring(folder, "other")
    daemon.tick()
    (folder / "mine.py").rename(folder / "renamed.py")
    (folder / "other.py").unlink()
    assert daemon.tick() == variants_of("renamed")
    assert not daemon.partitions & {*variants_of("mine"), *variants_of("other")}
    assert set(variants_of("renamed")) <= daemon.partitions
    bring(folder, "other")
    assert daemon.tick() == variants_of("other"), "it came back"


def test_a_model_that_breaks_keeps_its_partitions_until_it_is_mended(daemon: Daemon, folder: Path) -> None:
    bring(folder, "mine")
    bring(folder, "other")
    daemon.tick()
    (folder / "mine.py").write_text("class (")
    assert daemon.tick() == []
    assert set(variants_of("mine")) <= daemon.partitions
    bring(folder, "mine")
    assert daemon.tick() == variants_of("mine")


def test_two_models_of_one_name_leave_the_partitions_as_they_are(daemon: Daemon, folder: Path) -> None:
    daemon.tick()
    bring(folder, "toy_cnn")
    assert daemon.tick() == []
    assert "toy_cnn-fp32" in daemon.partitions


def test_partitions_that_somebody_asked_for_stay(daemon: Daemon, folder: Path) -> None:
    bring(folder, "mine")
    asked = ["executorch.resnet8-fp32", "hf.bert.layers_1-fp16", "mine.size_32-int8"]
    daemon.instance.add_dynamic_partitions(MODEL_VARIANTS, [*asked, "nonsense", "toy_cnn-int4"])
    daemon.tick()
    assert set(asked) <= daemon.partitions
    assert not daemon.partitions & {"nonsense", "toy_cnn-int4"}


def test_many_models_at_once_are_exported_over_several_ticks(daemon: Daemon, folder: Path) -> None:
    for number in range(7):
        bring(folder, f"net{number}")
    ticks = [daemon.tick() for _ in range(4)]
    assert [len(keys) for keys in ticks] == [MOST_EXPORTS_PER_TICK, 10, 1, 0]
    assert len({key for keys in ticks for key in keys}) == 21


def test_a_model_that_names_a_missing_file_waits_for_it(daemon: Daemon, folder: Path) -> None:
    text = template("mine").replace("MODEL = {", 'MODEL = {\n    "files": ["weights.pt"],')
    (folder / "mine.py").write_text(text)
    assert daemon.tick() == []
    (folder / "weights.pt").write_bytes(b"weights")
    assert daemon.tick() == variants_of("mine")


def test_dagster_takes_new_partitions_and_their_runs_from_one_tick(tmp_path: Path, folder: Path) -> None:
    bring(folder, "mine")
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        context = dg.SensorEvaluationContext(
            instance_ref=instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=None,
            repository_name=None,
            repository_def=defs.get_repository_def(),
        )
        with context:
            evaluated = model_variants_sensor.evaluate_tick(context)
    runs = evaluated.run_requests or []
    assert [(run.tags[RANGE_START], run.tags[RANGE_END]) for run in runs] == [
        (run_key(variant, TARGETS[0]), run_key(variant, TARGETS[-1])) for variant in variants_of("mine")
    ]
