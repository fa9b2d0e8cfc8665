"""What has just been made is up to date: Dagster knows from which versions of its inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

# What the UI shows as out of date; Dagster has no public name for it.
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from sme2_assets import launch
from sme2_assets.analysis.factors import SME2
from sme2_assets.defs.assets import advice, arms, models, noise, runners, sessions, traces
from sme2_assets.defs.assets.models import current_export
from sme2_assets.defs.jobs import advise_job, arms_job, compare_job, noise_job, profile_job
from sme2_assets.defs.partitions import MODEL_VARIANTS
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.gate.take import Taken
from sme2_assets.launch import Jobs
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.arms import ArmSpec
from sme2_assets.profiling.requests import ProfileRequest
from sme2_assets.store import Store
from sme2_assets.warehouse.read import comparison_of_session
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.gate.test_judge import facts, operator
from sme2_assets_tests.made.run_folder import MadeRun

VARIANT = "toy_cnn-fp32"
HERE = SimpleNamespace(platform="linux", fidelity="hardware")


@pytest.fixture
def jobs(tmp_path: Path, artifacts_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Sessions take no time and no device. Another model has been exported and measured before."""
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    binary = SimpleNamespace(
        **dict.fromkeys(("sha256", "executorch_version", "compiler", "cmake_version"), "1"),
        path=tmp_path / "runner" / "sme2_runner",
        build_seconds=1.0,
        cached=False,
    )
    monkeypatch.setattr(Lab, "require", lambda *_, **__: HERE)
    monkeypatch.setattr(runners, "runner_for", lambda *_, **__: binary)
    for module in (traces, noise, arms):
        monkeypatch.setattr(module, "measure_session", made_session)
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(MODEL_VARIANTS, [VARIANT, "toy_cnn-int8"])
    for asset in ("exported_model", "runner_binary"):
        instance.report_runless_asset_event(
            dg.AssetMaterialization(asset, partition="toy_cnn-int8|emulated-sme2_on")
        )
    return Jobs(Lab(data_root=str(store.root)), instance, print)


def made_session(store: Store, _target: object, model: ExportedModel, *rest: Any, **_: Any) -> list[Manifest]:
    specs: list[ArmSpec] = next(it for it in rest if isinstance(it, list))
    factor = rest[-1] if isinstance(rest[-1], str) and rest[-1] != SME2.name else None
    number = len(list(store.runs.glob("*")))
    made = [
        MadeRun(
            session_id=f"20260101T0000{number:02d}-aaaaaa",
            sequence=number,
            paired=len(specs) > 1,
            sme2=spec.sme2,
            variant=spec.model.variant if spec.model else model.variant,
            factor=factor or ("aa" if len({it.sme2 for it in specs}) < len(specs) else None),
            arm=spec.label,
            threads=spec.settings.get("threads", 1),
        )
        for spec in specs
    ]
    return [RunFolder.open(it.write(store.runs)).manifest for it in made]


def stale(jobs: Jobs) -> dict[str, list[str]]:
    """What is out of date, and why."""
    graph = jobs.definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(jobs.instance, graph, LoadingContextForTest(jobs.instance))
    found = {}
    for key in graph.get_all_asset_keys():
        for partition in jobs.instance.get_materialized_partitions(key) or [None]:
            if resolver.get_status(key, partition) == StaleStatus.STALE:
                causes = resolver.get_stale_root_causes(key, partition)
                found[f"{key.to_user_string()} {partition or ''}"] = [
                    f"{cause.asset_key.to_user_string()} {cause.reason}" for cause in causes
                ]
    return found


def measure_pair(jobs: Jobs, variant: str) -> None:
    jobs.run(profile_job.name, [f"{variant}|linux-sme2_{sme2}" for sme2 in ("off", "on")])
    jobs.run(compare_job.name, [f"{variant}|linux"])


def test_the_first_measurement_of_a_model_is_up_to_date(jobs: Jobs):
    measure_pair(jobs, VARIANT)
    assert stale(jobs) == {}


def test_each_table_of_a_session_says_its_rows_and_what_its_columns_mean(jobs: Jobs):
    jobs.run(profile_job.name, [f"{VARIANT}|linux-sme2_off"])
    for asset, table in (
        ("timeline", "timeline"),
        ("kernel_evidence", "kernel_usage"),
        ("category_summary", "category_summary"),
    ):
        [record] = jobs.instance.fetch_materializations(dg.AssetKey(asset), limit=1).records
        assert record.asset_materialization is not None
        shown = record.asset_materialization.metadata
        rows = cast(Lab, jobs.definitions.resources["lab"]).warehouse.query(f"FROM {table}")
        assert shown["dagster/row_count"].value == len(rows) > 0
        columns = cast(dg.TableSchemaMetadataValue, shown["dagster/column_schema"]).schema.columns
        assert [column.name for column in columns] == list(rows)
        assert all(column.description for column in columns)


def test_after_a_change_of_a_model_exactly_what_depends_on_it_is_out_of_date(jobs: Jobs):
    measure_pair(jobs, VARIANT)
    measure_pair(jobs, "toy_cnn-int8")
    changed = replace(
        current_export(cast(Lab, jobs.definitions.resources["lab"]), VARIANT, print), pte_sha256="0" * 64
    )
    keys = [f"{VARIANT}|linux-sme2_{sme2}" for sme2 in ("off", "on")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "current_export", lambda *_: changed)
        jobs.run(profile_job.name, keys, assets=[dg.AssetKey("exported_model")])
    # Dagster says it of what is next to the change; the rest follows when that is made again.
    assert set(stale(jobs)) == {f"etdump_traces {key}" for key in keys}
    measure_pair(jobs, VARIANT)
    assert stale(jobs) == {}


def test_the_first_noise_of_a_device_is_up_to_date(jobs: Jobs):
    jobs.run(noise_job.name, [f"{VARIANT}|linux-sme2_off"])
    assert stale(jobs) == {}


def test_the_first_comparison_of_arms_is_up_to_date(jobs: Jobs):
    compared = [{"variant": VARIANT, "sme2": "off", "threads": threads} for threads in (1, 2)]
    config = {"factor": "threads", "platform": "linux", "arms": compared}
    jobs.run(arms_job.name, ops={"arms_comparison": {"config": config}})
    assert stale(jobs) == {}


@pytest.mark.parametrize(("variant", "states"), [(VARIANT, ("on",)), ("toy_cnn.seed_3-fp32", ("off", "on"))])
def test_what_the_gate_and_advice_measure_makes_nothing_out_of_date_and_no_partition(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, variant: str, states: tuple[str, ...]
):
    measure_pair(jobs, VARIANT)
    models = jobs.instance.get_dynamic_partitions(MODEL_VARIANTS)
    for module in (launch, sessions):
        # An option of the model changes nothing here, and costs an export.
        monkeypatch.setattr(module, "current_export", lambda lab, _, log: current_export(lab, VARIANT, log))
    lab = cast(Lab, jobs.definitions.resources["lab"])
    request = ProfileRequest(variant, "linux", states)
    tried = launch.measure_trial(lab, jobs.instance, request, {}, print)
    runs = lab.warehouse.query("SELECT run_id FROM runs WHERE session_id = ?", [tried.session_id])
    assert sorted(runs["run_id"]) == sorted(tried.run_ids)
    assert len(tried.run_ids) == len(states)
    compared = comparison_of_session(lab.warehouse, tried.session_id)
    assert compared.empty == (len(states) == 1)
    assert stale(jobs) == {}
    assert jobs.instance.get_dynamic_partitions(MODEL_VARIANTS) == models


def test_a_trial_whose_outputs_are_wrong_fails(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "output_faults", lambda lab, run_id: "against eager: 9.0 dB")
    lab = cast(Lab, jobs.definitions.resources["lab"])
    with pytest.raises(Sme2Error, match=r"9\.0 dB"):
        launch.measure_trial(lab, jobs.instance, ProfileRequest(VARIANT, "linux", ("on",)), {}, print)


def test_advice_stays_up_to_date_when_another_model_is_measured(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    base = Taken(facts(operator(0, macs=9, unit="off")), {})
    monkeypatch.setattr(advice, "taken_of", lambda *_: base)
    monkeypatch.setattr(advice, "latest_runs", lambda *_: [{"run_id": "r"}])
    measure_pair(jobs, VARIANT)
    jobs.run(advise_job.name, [VARIANT], {"advice": {"config": {"variants": []}}})
    measure_pair(jobs, "toy_cnn-int8")
    assert stale(jobs) == {}
