"""The whole chain through a real Dagster instance, from the runner to the report."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest

from sme2_assets.defs.jobs import INPUT_ASSETS, RUN_ASSETS, compare_job, profile_job, regressions_job
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.device import native_fidelity
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest
from sme2_assets.launch import Jobs, profile
from sme2_assets.profiling.blind import DOSES_PERCENT
from sme2_assets.profiling.requests import ProfileRequest
from sme2_assets.targets.host import host_arch, host_has_sme2, host_platform
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets.toolchain.sdk import OLDEST
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.schema import INFERENCES, RUNS
from sme2_assets_tests.e2e.conftest import Workbench, opened_workbench

RUN_CHECKS = {
    "outputs_match_eager",
    "every_nanosecond_accounted_for",
    "sme2_evidence_fits_the_state",
    "every_operator_known",
    "operators_attributed",
    "sme2_kernels_executed",
    "work_adds_up",
    "noise_within_bounds",
    "warm_up_steady",
    "passes_agree",
    "arms_are_one_pair",
}
# These warn, and may do so on any machine that is busy with something else.
ABOUT_THE_MACHINE = {"noise_within_bounds", "warm_up_steady", "passes_agree"}
native_without_sme2 = pytest.mark.skipif(
    host_platform() != "linux" or host_has_sme2(), reason="needs a Linux host without SME2"
)


@pytest.fixture(scope="module")
def host() -> str:
    platform = host_platform()
    if platform is None:
        pytest.skip("no native platform on this host")
    return platform


@pytest.fixture(scope="module")
def native_baseline(workbench: Workbench, host: str) -> list[str]:
    """A session on this host's own CPU, with SME2 off alone; gives what was logged."""
    return workbench.profile("toy_cnn-fp32", host, "off", rounds=2, warmup=1, iterations=3, kernel_rounds=1)


@pytest.fixture(
    scope="module",
    params=["fp32", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("fp16", "int8"))],
)
def emulated_pair(request: pytest.FixtureRequest, workbench: Workbench, emulator: Qemu) -> str:
    variant = f"toy_cnn-{request.param}"
    workbench.profile(variant, "emulated", "off", "on")
    return variant


PACKED_TYPE = {"fp32": "PF32", "fp16": "PF16", "int8": "PQS8"}


def test_sme2_kernels_run_when_on_and_none_when_off(workbench: Workbench, emulated_pair: str):
    operators = workbench.warehouse.query(
        "SELECT sme2, name, category FROM operator_summary WHERE variant = ? AND sme2_evidence <> 'none'",
        [emulated_pair],
    )
    packed = PACKED_TYPE[emulated_pair.rsplit("-", 1)[1]]
    assert set(operators["sme2"]) == {"on"}
    assert set(operators["category"]) == {"CONV", "GEMM"}
    assert operators["name"].str.contains(packed, regex=False).all()


def test_what_names_imply_was_counted_and_nothing_with_sme2_off(workbench: Workbench, emulated_pair: str):
    facts = workbench.warehouse.query(
        "SELECT sme2, facts.name, category, facts.sme2_evidence, summary.sme2_evidence AS by_name, "
        "macs_on_unit, streaming_entries FROM operator_facts AS facts "
        "JOIN operator_summary AS summary USING (run_id, backend, delegate, position, sme2, category) "
        "WHERE facts.variant = ?",
        [emulated_pair],
    )
    off, on = facts[facts["sme2"] == "off"], facts[facts["sme2"] == "on"]
    assert set(off["sme2_evidence"]) == {"none"}
    assert off["macs_on_unit"].sum() == off["streaming_entries"].sum() == 0
    promised = on[(on["by_name"] == "name") & on["category"].isin(["CONV", "GEMM"])]
    assert len(promised) >= 3
    assert (promised["sme2_evidence"] == "executed").all(), promised


def test_every_counted_instruction_of_a_run_is_in_exactly_one_row_of_kernel_usage(
    workbench: Workbench, emulated_pair: str
):
    runs = workbench.warehouse.query(
        "WITH counted AS (SELECT run_id, sum(instructions) AS counted FROM operator_work GROUP BY run_id) "
        "SELECT sme2, counted, sum(usage.instructions) AS used, sum(usage.share_of_run) AS shares "
        "FROM counted JOIN kernel_usage AS usage USING (run_id) "
        "WHERE usage.variant = ? AND usage.platform = 'emulated' GROUP BY ALL",
        [emulated_pair],
    )
    assert sorted(runs["sme2"]) == ["off", "on"]
    assert (runs["counted"] > 0).all()
    assert (runs["counted"] == runs["used"]).all()
    assert runs["shares"].to_list() == pytest.approx([1.0, 1.0])


def test_every_operator_has_its_place_in_the_model(workbench: Workbench, emulated_pair: str):
    operators = workbench.warehouse.query(
        "SELECT category, attribution, source, macs FROM operator_facts WHERE variant = ?", [emulated_pair]
    )
    assert operators["attribution"].isin(["exact", "aligned", "inserted"]).all()
    work = operators[operators["category"].isin(["CONV", "GEMM"])]
    assert work["source"].str.startswith("sme2_assets/models/toy_cnn.py:").all()
    assert (work["macs"] > 0).all()


def test_an_emulated_pair_is_compared_in_kernels_and_never_in_time(workbench: Workbench, emulated_pair: str):
    rows = workbench.warehouse.query("SELECT * FROM sme2_comparison WHERE variant = ?", [emulated_pair])
    assert set(rows["level"]) == {"model", "category", "operator"}
    assert set(rows["verdict"]) == {"not comparable"}
    assert rows[["off_ns", "on_ns", "speedup", "speedup_low", "speedup_high"]].isna().all().all()
    model = rows[rows["level"] == "model"].iloc[0]
    assert model["sme2_operators_off"] == 0
    assert model["sme2_operators_on"] > 0
    assert "mean nothing" in model["reason"]


def test_both_arms_are_one_session_with_one_binary_and_one_model_file(
    workbench: Workbench, emulated_pair: str
):
    runs = workbench.warehouse.query(
        "SELECT * FROM latest_runs WHERE variant = ? AND platform = 'emulated'", [emulated_pair]
    )
    assert sorted(runs["sme2"]) == ["off", "on"]
    for column in ("session_id", "runner_sha256", "pte_sha256", "threads", "device"):
        assert runs[column].nunique() == 1, column
    by_state = runs.set_index("sme2")
    assert "sme2" in by_state.loc["on", "cpu_features_seen"]
    assert len(by_state.loc["on", "cpu_features_masked"]) == 0
    assert {"sme", "sme2"} <= set(by_state.loc["off", "cpu_features_masked"])
    assert (runs["sqnr_db"] >= runs["sqnr_threshold_db"]).all()
    assert (runs["fidelity"] == "emulated").all()


def test_dagster_knows_the_lineage_and_shows_what_people_want(workbench: Workbench, emulated_pair: str):
    for asset in RUN_ASSETS:
        partitions = workbench.materialisations(asset)
        for state in ("off", "on"):
            metadata = partitions[f"{emulated_pair}|emulated-sme2_{state}"]
            assert asset in INPUT_ASSETS or str(metadata["run_id"]).endswith(f"sme2_{state}")
    comparison = workbench.materialisations("sme2_comparison")[f"{emulated_pair}|emulated"]
    assert comparison["kind"] == "kernel evidence"
    assert "matrix operators" in str(comparison["answer"])
    assert "data:image/svg+xml;base64," in str(comparison["category shift"])
    report = workbench.materialisations("report")[f"{emulated_pair}|emulated"]
    assert "SME2 on against off" in str(report["report"])


def test_every_check_ran_and_passed(workbench: Workbench, emulated_pair: str):
    records = workbench.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(dg.AssetKey("timeline"), "every_nanosecond_accounted_for"), limit=100
    )
    assert {record.status.value for record in records} == {"SUCCEEDED"}, "none was planned and then skipped"
    evaluated = set()
    for event in _events(workbench, dg.DagsterEventType.ASSET_CHECK_EVALUATION, f"{emulated_pair}|emulated"):
        evaluation = event.asset_check_evaluation_data
        assert evaluation.passed or evaluation.check_name in ABOUT_THE_MACHINE, evaluation
        evaluated.add(evaluation.check_name)
    assert evaluated == RUN_CHECKS


def test_the_report_is_written_with_its_picture(workbench: Workbench, emulated_pair: str):
    [folder] = (workbench.store.reports / emulated_pair / "emulated").iterdir()
    text = (folder / "report.md").read_text()
    assert "times mean nothing" in text
    assert "Insights" in text
    assert (folder / "categories.svg").read_text().startswith("<svg ")


@pytest.mark.thorough
def test_the_emulated_chain_of_an_x86_64_host_runs_a_cross_built_runner(
    tmp_path: Path, artifacts_dir: Path, emulator: Qemu, x86_64_host: None
):
    """On every host, so that the way of the other architecture is seen to work by whoever changes it."""
    with opened_workbench(tmp_path / "data", artifacts_dir) as workbench:
        workbench.profile("toy_cnn-int8", "emulated", "off", "on", threads=2, kernel_rounds=0)
    runs = workbench.warehouse.query("SELECT run_id, threads FROM runs")
    assert runs["threads"].to_list() == [2, 2]
    for run_id in runs["run_id"]:
        for process in RunFolder.open(workbench.store.runs / run_id).manifest.info.processes:
            assert any(word.endswith("/ld-linux-aarch64.so.1") for word in process.command), process.command
    operators = workbench.warehouse.query(
        "SELECT sme2, name FROM operator_summary WHERE sme2_evidence <> 'none'"
    )
    assert set(operators["sme2"]) == {"on"}
    assert operators["name"].str.contains("PQS8").all()


def test_a_native_baseline_is_measured_alone(workbench: Workbench, host: str, native_baseline: list[str]):
    assert f"toy_cnn-fp32 on {host}: round 2 of 2" in native_baseline
    [run] = workbench.warehouse.query(
        "SELECT * FROM latest_runs WHERE platform = ? AND threads = 1", [host]
    ).to_dict("records")
    assert (run["sme2"], run["fidelity"], bool(run["paired"])) == ("off", native_fidelity(host_arch()), False)
    inferences = workbench.warehouse.query(
        "SELECT pass, count(*) AS n, count(*) FILTER (is_warmup) AS warmup FROM inferences "
        "WHERE run_id = ? AND pass <> 'kernels' GROUP BY pass ORDER BY pass",
        [run["run_id"]],
    )
    assert json.loads(inferences.to_json(orient="records")) == [
        {"pass": "etdump", "n": 8, "warmup": 2},
        {"pass": "latency", "n": 8, "warmup": 2},
    ]
    assert run["samples"] > 0
    roof = RunFolder.open(workbench.store.run_dir(run["run_id"])).roof()
    assert roof is not None
    assert (roof.fp32_gflops, roof.read_gb_s) == (run["roof_fp32_gflops"], run["roof_read_gb_s"])
    emulated = workbench.warehouse.query("SELECT roof_read_gb_s FROM runs WHERE platform = 'emulated'")
    assert emulated["roof_read_gb_s"].isna().all(), "an emulator's speed is no roof"


@pytest.mark.usefixtures("native_baseline")
def test_a_baseline_is_never_compared_with_an_older_run(workbench: Workbench, host: str):
    """The off arm of one session and nothing, or another session, is no pair: refused with the reason."""
    jobs = Jobs(workbench.lab, workbench.instance, print)
    with pytest.raises(Sme2Error) as caught:
        jobs.run(compare_job.name, [f"toy_cnn-fp32|{host}"])
    assert "sme2 profile" in str(caught.value)


@native_without_sme2
def test_sme2_on_without_sme2_fails_with_what_is_missing_and_leaves_nothing(workbench: Workbench):
    jobs = Jobs(workbench.lab, workbench.instance, print)
    with pytest.raises(Sme2Error, match="has no SME2") as caught:
        jobs.run(profile_job.name, ["toy_cnn-fp32|linux-sme2_on"])
    assert "emulated" in str(caught.value.remedy)
    assert "toy_cnn-fp32|linux-sme2_on" not in workbench.materialisations("etdump_traces")
    assert workbench.warehouse.query("SELECT * FROM runs WHERE target = 'linux-sme2_on'").empty
    failure = _events(workbench, dg.DagsterEventType.STEP_FAILURE)[0].step_failure_data.user_failure_data
    assert failure is not None
    assert "What to do" in (failure.description or "")


@pytest.mark.usefixtures("native_baseline")
def test_identical_arms_are_measured_compared_and_kept_apart(workbench: Workbench, host: str):
    before = workbench.warehouse.query("SELECT * FROM latest_runs")
    request = ProfileRequest("toy_cnn-fp32", host, ("off",))
    settings = {"rounds": 6, "warmup": 1, "iterations": 3, "kernel_rounds": 0, "quiet_patience_s": 0}
    blind = {"blind_trials": 2}
    profile(workbench.lab, workbench.instance, [request], settings | blind, print, aa=True)
    [session] = workbench.warehouse.query("SELECT * FROM aa_sessions").to_dict("records")
    assert (session["variant"], session["n"]) == ("toy_cnn-fp32", 6)
    assert session["deviation"] >= 1
    noise = workbench.materialisations("aa_noise")[f"toy_cnn-fp32|{host}-sme2_off"]
    assert "needs 10 A/A sessions" in str(noise["noise floor of the device"])
    trials = workbench.warehouse.query("SELECT * FROM blind_trials")
    assert trials["n"].tolist() == [6, 6]
    assert set(trials["dose_percent"]) <= {0, *DOSES_PERCENT}
    assert "of 2" in str(noise["blind trials"]) or "of 1" in str(noise["blind trials"])
    after = workbench.warehouse.query("SELECT * FROM latest_runs")
    assert sorted(after["run_id"]) == sorted(before["run_id"]), "an A/A run is never a partition's latest"
    moments = workbench.warehouse.query(
        "SELECT round, moment, load_1m FROM environment JOIN runs USING (run_id) WHERE arm = 'a'"
    )
    assert len(moments) == 12
    assert (moments["load_1m"] >= 0).all()


@pytest.mark.thorough
def test_two_executorch_versions_run_one_program_each_with_its_own_runner(workbench: Workbench, host: str):
    installed = importlib.metadata.version("executorch")
    model = workbench.compare(host, variants=["toy_cnn-fp32"], executorch=[OLDEST, installed])
    assert (model["factor"], model["a_value"], model["b_value"]) == (
        "executorch",
        OLDEST,
        installed,
    )
    runs = workbench.warehouse.query(
        "SELECT * FROM runs WHERE session_id = ? ORDER BY arm", [model["session_id"]]
    )
    assert runs["executorch_version"].tolist() == [OLDEST, installed]
    assert (runs["runner_sha256"].nunique(), runs["pte_sha256"].nunique()) == (2, 1)
    assert runs["arms_fault"].isna().all()
    manifests = [Manifest.read(workbench.store.run_dir(run) / MANIFEST_FILE) for run in runs["run_id"]]
    assert len({each.info.versions["executorch_record_sha256"] for each in manifests}) == 2


@pytest.mark.usefixtures("native_baseline")
def test_a_slow_down_in_the_history_fails_the_check_until_it_is_acknowledged(workbench: Workbench, host: str):
    """A real run as each of the nights before; the same run, slower, as the nights after."""
    jobs = Jobs(workbench.lab, workbench.instance, print)
    jobs.run(regressions_job.name)
    assert workbench.warehouse.query("SELECT * FROM regressions").empty
    add_nights(workbench.warehouse, host, nights=16, slower_from=8, factor=1.5)
    jobs.run(regressions_job.name)
    found = workbench.warehouse.query("SELECT * FROM regressions WHERE category = 'latency'")
    assert found["ratio"].item() == pytest.approx(1.5, rel=0.05)
    assert found["run_id"].item() == "night-08"
    assert not _newest_check(workbench, "regressions", "no_regression").passed
    listed = workbench.warehouse.query("SELECT DISTINCT run_id FROM regressions")["run_id"]
    (workbench.store.root / "acknowledged.txt").write_text("\n".join(listed) + "  # a known change\n")
    jobs.run(regressions_job.name)
    assert workbench.warehouse.query("SELECT * FROM regressions WHERE NOT acknowledged").empty
    assert _newest_check(workbench, "regressions", "no_regression").passed


def add_nights(warehouse: Warehouse, host: str, nights: int, slower_from: int, factor: float) -> None:
    """Copies of a measured run as a history of nights, in a thread count of their own."""
    run = warehouse.query("SELECT * FROM latest_runs WHERE platform = ? AND sme2 = 'off'", [host]).iloc[0]
    keys = {"variant": run["variant"], "target": run["target"]}
    inferences = warehouse.query("SELECT * FROM inferences WHERE run_id = ?", [run["run_id"]])
    rows = run.to_frame().T
    for night in range(nights):
        scale = (factor if night >= slower_from else 1.0) * (1 + 0.001 * (night % 3))
        started = run["started_at"] + pd.Timedelta(days=night + 1)
        night_keys = {**keys, "run_id": f"night-{night:02d}"}
        of_night = inferences.assign(duration_ns=(inferences["duration_ns"] * scale).round().astype("int64"))
        drop = ["variant", "target", "run_id"]
        parts = [
            (INFERENCES, of_night.drop(columns=drop), night_keys),
            (RUNS, rows.assign(started_at=started, threads=7).drop(columns=drop), night_keys),
        ]
        warehouse.write_together(parts, [night_keys["run_id"]])
    warehouse.publish()


def _newest_check(workbench: Workbench, asset: str, name: str) -> dg.AssetCheckEvaluation:
    evaluations = [
        event.asset_check_evaluation_data
        for event in _events(workbench, dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    ]
    return next(it for it in evaluations if (it.asset_key, it.check_name) == (dg.AssetKey(asset), name))


def _events(
    workbench: Workbench, event_type: dg.DagsterEventType, partition: str = ""
) -> list[dg.DagsterEvent]:
    """Events of that kind, newest run first; of all runs, or of those of partitions that begin so."""
    events = []
    for run in workbench.instance.get_runs():
        if partition and not any(tag.startswith(partition) for tag in run.tags.values()):
            continue
        for record in workbench.instance.get_records_for_run(run.run_id, of_type=event_type).records:
            event = record.event_log_entry.dagster_event
            assert event is not None
            events.append(event)
    return events
