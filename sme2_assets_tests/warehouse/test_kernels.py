"""What the samples of a run become, and which faults of theirs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.errors import EvidenceError, ExportError, TraceError
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import attribution_faults, executed_kernel_faults
from sme2_assets.warehouse.ingest import (
    registered_rows_of_log,
    rows_of_run,
    write_runs,
)
from sme2_assets.warehouse.read import run_of_id
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.variants import measured_variants
from sme2_assets_tests.made.run_folder import (
    SME2_KERNEL,
    MadeRun,
    ingest,
    vouch_for_what_is_there,
)

REGISTERED = "Using sme2 PF32 GEMM microkernel 'xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2'\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A pair on hardware, as it should be."""
    folder = tmp_path_factory.mktemp("kernels")
    warehouse = Warehouse(folder / "warehouse")
    ingest(warehouse, *(MadeRun(sme2=sme2, rounds=2).write(folder / "runs") for sme2 in ("off", "on")))
    warehouse.publish()
    return warehouse


def run_of(sme2: str) -> str:
    return MadeRun(sme2=sme2).run_id


def test_each_operator_has_the_evidence_of_its_samples(measured: Warehouse):
    facts = measured.query("SELECT sme2, name, sme2_evidence FROM operator_facts WHERE backend = 'xnnpack'")
    executed = facts[facts["sme2_evidence"] == "executed"]
    assert set(executed["sme2"]) == {"on"}
    assert executed["name"].str.contains("PF32").all()
    assert len(executed) == facts["name"].str.contains("PF32").sum() == 2
    assert (facts.loc[~facts["name"].str.contains("PF32"), "sme2_evidence"] == "none").all()


def test_every_sample_is_in_one_row_of_the_usage(measured: Warehouse):
    counts = measured.query(
        "SELECT runs.samples AS taken, sum(usage.samples) AS shown, sum(share_of_run) AS share "
        "FROM kernel_usage AS usage JOIN runs USING (run_id) GROUP BY runs.run_id, runs.samples"
    )
    assert (counts["taken"] == counts["shown"]).all()
    assert counts["share"].tolist() == pytest.approx([1, 1])


def test_a_function_without_a_name_is_its_library_and_offset(measured: Warehouse):
    kernels = measured.query("SELECT DISTINCT kernel, named FROM kernel_usage ORDER BY named")
    assert kernels["kernel"].tolist() == ["libexecutorch_backend_xnnpack.so+0x2000", SME2_KERNEL]


def test_an_operator_knows_its_line_and_its_rate(measured: Warehouse):
    [conv] = measured.query(
        "SELECT * FROM operator_facts WHERE sme2 = 'off' AND module = 'features.0.conv'"
    ).to_dict("records")
    assert conv["source"] == "model.py:2"
    assert conv["gops"] == pytest.approx(2 * conv["macs"] / conv["mean_ns"])


def test_a_time_of_a_few_whole_microseconds_gives_no_rate(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, MadeRun(slowness=0.01).write(tmp_path))
    warehouse.publish()
    rated = warehouse.query("SELECT median_ns, gops FROM operator_facts WHERE macs > 0 ORDER BY median_ns")
    assert rated["median_ns"].tolist() == [1000, 3000, 7000]
    assert rated["gops"].isna().tolist() == [True, True, False]
    modules = warehouse.query("SELECT gops FROM module_summary WHERE module = 'head.linear'")
    assert modules["gops"].isna().tolist() == [True]


def test_a_pair_as_it_should_be_has_no_fault(measured: Warehouse):
    for sme2 in ("off", "on"):
        run = run_of_id(measured, run_of(sme2))
        assert executed_kernel_faults(measured, run) is None
        assert attribution_faults(measured, run) is None


Tamper = Callable[[pd.DataFrame], pd.DataFrame]


def tampered(folder: Path, sme2: str, tamper: Tamper) -> tuple[Warehouse, dict[str, object]]:
    """A warehouse with one run whose samples were changed on their way."""
    warehouse = Warehouse(folder / "warehouse")
    made = MadeRun(sme2=sme2, rounds=1, iterations=20).write(folder / "runs")
    rows = rows_of_run(made)
    write_runs(warehouse, replace(rows, kernel_samples=tamper(rows.kernel_samples)))
    warehouse.publish()
    return warehouse, run_of_id(warehouse, rows.manifest.run_id)


@pytest.mark.parametrize(
    ("sme2", "tamper", "fault"),
    [
        ("off", lambda samples: samples.assign(isa="sme2", role="compute"), "samples are in SME kernels"),
        ("off", lambda samples: samples.assign(unit="SME"), "samples are in SME kernels"),
        ("on", lambda samples: samples.assign(isa="neon", unit="SIMD/FP"), "no sample shows it"),
        (
            "on",
            lambda samples: samples.assign(isa="sme2", role="query", unit="other"),
            "no sample is in an SME",
        ),
        ("on", lambda samples: samples.head(0), "nothing was sampled"),
    ],
    ids=["sme kernels when off", "sme instructions when off", "neon when on", "queries only", "no samples"],
)
def test_samples_at_odds_with_the_state_are_found(tmp_path: Path, sme2: str, tamper: Tamper, fault: str):
    warehouse, run = tampered(tmp_path, sme2, tamper)
    assert fault in (executed_kernel_faults(warehouse, run) or "")


def test_one_stray_sample_proves_nothing(tmp_path: Path):
    def stray(samples: pd.DataFrame) -> pd.DataFrame:
        softmax = (samples["delegate"] == 1) & (samples["position"] == 1)
        one = samples[softmax].head(1).assign(isa="sme2", role="compute", unit="SME", samples=1)
        return pd.concat([samples, one], ignore_index=True)

    warehouse, _ = tampered(tmp_path, "on", stray)
    facts = warehouse.query(
        "SELECT sme2_evidence, sme_samples FROM operator_facts WHERE name LIKE 'Softmax%'"
    )
    assert facts.to_dict("records") == [{"sme2_evidence": "none", "sme_samples": 1}]


def test_operators_without_a_place_in_the_model_are_found(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    rows = rows_of_run(MadeRun(rounds=1).write(tmp_path / "runs"))
    write_runs(warehouse, replace(rows, operators=rows.operators.assign(attribution="ambiguous")))
    warehouse.publish()
    fault = attribution_faults(warehouse, run_of_id(warehouse, rows.manifest.run_id))
    assert fault == "8 of 8 operators have no single place in the model"


def test_coverage_counts_rows_and_time_of_which_the_origin_is_settled(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    rows = rows_of_run(MadeRun(rounds=1).write(tmp_path / "runs"))
    # The convolution alone is ambiguous: an eighth of the operators, but most of the time.
    convolution = rows.operators["module"] == "features.0.conv"
    states = rows.operators["attribution"].mask(convolution, "ambiguous")
    write_runs(warehouse, replace(rows, operators=rows.operators.assign(attribution=states)))
    warehouse.publish()
    [found] = warehouse.query("FROM attribution_coverage").to_dict("records")
    [share] = warehouse.query(
        "SELECT sum(mean_ns) FILTER (op_type <> 'Convolution') / sum(mean_ns) AS s FROM operator_summary"
    )["s"]
    assert found["row_coverage"] == 7 / 8
    assert found["time_coverage"] == pytest.approx(share)
    assert found["time_coverage"] < 0.6


def test_coverage_of_a_program_without_its_model_is_unknown_and_no_fault(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    rows = rows_of_run(MadeRun(rounds=1).write(tmp_path / "runs"))
    unplaced = rows.operators.assign(module=None, module_type=None, source=None, code=None)
    write_runs(warehouse, replace(rows, operators=unplaced))
    warehouse.publish()
    [found] = warehouse.query("FROM attribution_coverage").to_dict("records")
    assert found["operators"] == 8
    for column in ("attributed_operators", "row_coverage", "time_coverage"):
        assert pd.isna(found[column])
    assert attribution_faults(warehouse, run_of_id(warehouse, rows.manifest.run_id)) is None


def test_what_was_measured_is_found_when_its_model_is_gone(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    manifest = rows_of_run(made := MadeRun(rounds=1).write(tmp_path / "runs")).manifest
    variant, gone = manifest.identity.variant, "gone.size_seq_16-fp32"
    text = (made / "manifest.json").read_text().replace(f'"{variant}"', f'"{gone}"')
    (made / "manifest.json").write_text(text.replace(f'"{manifest.identity.model}"', '"gone.size_seq_16"'))
    write_runs(warehouse, rows_of_run(made))
    warehouse.publish()
    for asked in ("gone@size_seq=16", "gone@size_seq=16-fp32", gone, "gone.size_seq_16"):
        assert measured_variants(warehouse, asked) == [gone]
    with pytest.raises(ExportError, match="There is no model 'gone'"):
        measured_variants(warehouse, "gone@size_seq=32")


def test_samples_that_changed_since_are_refused(tmp_path: Path):
    made = MadeRun(rounds=1).write(tmp_path)
    samples = made / "round_00" / "kernels" / "samples.json"
    samples.write_text(samples.read_text().replace("500000", "400000"))
    with pytest.raises(EvidenceError, match="its content changed"):
        rows_of_run(made)


def test_broken_samples_write_no_rows(tmp_path: Path):
    made = MadeRun(rounds=1).write(tmp_path)
    (made / "round_00" / "kernels" / "samples.json").write_text("{}")
    vouch_for_what_is_there(made)
    with pytest.raises(EvidenceError):
        rows_of_run(made)


def test_the_log_of_a_source_build_is_registered_evidence(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    made = MadeRun(sme2="off", rounds=1).write(tmp_path / "runs")
    (made / "round_00" / "latency" / "runner.log").write_text(REGISTERED)
    vouch_for_what_is_there(made)
    write_runs(warehouse, rows_of_run(made))
    warehouse.publish()
    [kernel] = warehouse.query("FROM registered_kernels").to_dict("records")
    assert (kernel["kernel_family"], kernel["isa"]) == ("gemm", "sme2")
    levels = warehouse.query(
        "SELECT category, sme2_evidence FROM operator_facts WHERE category IN ('CONV', 'GEMM')"
    )
    assert set(levels["sme2_evidence"]) == {"registered"}


def test_a_log_from_elsewhere_is_stored_with_its_run(tmp_path: Path):
    store = Store(tmp_path / "data")
    made = MadeRun(sme2="off", rounds=1, paired=False).write(store.runs)
    warehouse = Warehouse(store.warehouse)
    take_session(store, warehouse, made)
    warehouse.publish()
    log = tmp_path / "runner.log"
    log.write_text(f"noise\n{REGISTERED}{REGISTERED}")
    done = CliRunner().invoke(main, ["--data", str(store.root), "kernel-log", str(log), "--run", made.name])
    assert done.exit_code == 0, done.output
    assert len(warehouse.query("FROM registered_kernels WHERE run_id = ?", [made.name])) == 1
    levels = warehouse.query("SELECT sme2_evidence FROM operator_facts WHERE category = 'GEMM'")
    assert set(levels["sme2_evidence"]) == {"registered"}
    refused = CliRunner().invoke(main, ["--data", str(store.root), "kernel-log", str(log), "--run", "nobody"])
    assert refused.exit_code == 1
    assert "no run" in refused.output


def test_an_empty_log_says_which_build_is_needed(tmp_path: Path):
    log = tmp_path / "runner.log"
    log.write_text("I 00:00:00.000704 executorch: hello\n")
    with pytest.raises(TraceError) as error:
        registered_rows_of_log(log)
    assert "XNN_LOG_LEVEL" in str(error.value)


def test_a_run_without_a_kernels_pass_is_not_at_fault(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    made = MadeRun(rounds=1, sampled=False).write(tmp_path / "runs")
    rows = rows_of_run(made)
    rows.inferences.drop(rows.inferences[rows.inferences["pass"] == "kernels"].index, inplace=True)
    write_runs(warehouse, rows)
    warehouse.publish()
    assert executed_kernel_faults(warehouse, run_of_id(warehouse, rows.manifest.run_id)) is None
