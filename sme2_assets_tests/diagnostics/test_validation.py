"""`sme2 validate`: what is whole passes, and every injected fault is named by the step that finds it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.diagnostics.steps import FAILED, NOTE, Checkup
from sme2_assets.diagnostics.validation import validate
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.foreign import Facts
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.store import Store
from sme2_assets_tests.exchange.kit_folder import trace, write_kit_folder
from sme2_assets_tests.exchange.measured_pair import Exported
from sme2_assets_tests.made.run_folder import vouch_for_what_is_there


def failed(made: Checkup) -> dict[str, str]:
    return {step.name: str(step.problem) for step in made.steps if step.status == FAILED}


@pytest.fixture
def run_copy(pair_files: Exported, tmp_path: Path) -> Path:
    """The folder of a run, to be damaged; the warehouse knows nothing of it."""
    run_id = pair_files.run("on")["run_id"]
    return Path(shutil.copytree(pair_files.store.run_dir(run_id), tmp_path / "runs" / run_id))


def test_a_whole_run_passes_every_step_and_its_comparison_is_told(pair_files: Exported):
    made = validate(pair_files.run("on")["run_id"], pair_files.store)
    assert made.ok, made
    details = {step.name: step.detail for step in made.steps}
    assert "every nanosecond in exactly one row" in details["nanoseconds"]
    assert "as in the evidence" in details["warehouse"]
    assert details["comparison"].startswith("faster")


def _other_bytes(folder: Path) -> None:
    (folder / "round_00" / "latency" / "result.json").write_text("{}")


def _no_trace(folder: Path) -> None:
    (folder / "round_00" / "etdump" / "trace.etdump").unlink()


def _cut_trace(folder: Path) -> None:
    path = folder / "round_00" / "etdump" / "trace.etdump"
    path.write_bytes(path.read_bytes()[:-100])
    vouch_for_what_is_there(folder)


def _lost_inferences(folder: Path) -> None:
    shutil.copyfile(
        folder / "round_00" / "etdump" / "trace.etdump", folder / "round_00" / "kernels" / "trace.etdump"
    )
    path = folder / "round_00" / "etdump" / "result.json"
    result = json.loads(path.read_text())
    result["iteration_ns"].append(result["iteration_ns"][0])
    result["iterations"] += 1
    path.write_text(json.dumps(result))
    vouch_for_what_is_there(folder)


def _impossible_clock(folder: Path) -> None:
    path = folder / "round_00" / "etdump" / "result.json"
    result = json.loads(path.read_text())
    result["iteration_ns"][0] = 5
    path.write_text(json.dumps(result))
    vouch_for_what_is_there(folder)


def _crashed_process(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["info"]["processes"][0]["exit_code"] = 5
    path.write_text(json.dumps(manifest))


def _wrong_outputs(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["info"]["sqnr_db"] = 3.0
    path.write_text(json.dumps(manifest))


def _broken_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "step", "cause"),
    [
        (_other_bytes, "files", "Not the files that were written: round_00/latency/result.json"),
        (_no_trace, "files", "Missing: round_00/etdump/trace.etdump"),
        (_cut_trace, "traces", "cut off"),
        (_lost_inferences, "traces", "inferences"),
        (_impossible_clock, "nanoseconds", "longer inside than outside"),
        (_crashed_process, "processes", "1 processes ended with an error"),
        (_wrong_outputs, "metrics", "outputs are wrong"),
        (_broken_manifest, "manifest", "manifest.json"),
    ],
)
def test_a_damaged_run_fails_the_step_that_looks_there(
    run_copy: Path, tmp_path: Path, damage: Callable[[Path], None], step: str, cause: str
):
    damage(run_copy)
    made = validate(str(run_copy), Store(tmp_path))
    assert not made.ok
    assert cause in failed(made)[step]


def test_a_program_is_checked_without_running_it(exported: Callable[[str], ExportedModel], tmp_path: Path):
    store = Store(tmp_path)
    pte = exported("toy_cnn-fp32").pte
    made = validate(str(pte), store)
    assert made.ok
    assert made.steps[-1].detail == "it has parts for XNNPACK"
    cut = tmp_path / "cut.pte"
    cut.write_bytes(pte.read_bytes()[:-1000])
    assert "cut off" in failed(validate(str(cut), store))["format"]
    other = tmp_path / "other.pte"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "not an ExecuTorch program" in failed(validate(str(other), store))["format"]


def test_traces_and_folders_of_the_kit_are_checked_before_anybody_relies_on_them(tmp_path: Path):
    store = Store(tmp_path / "data")
    folder = write_kit_folder(tmp_path)
    made = validate(str(folder), store)
    assert made.ok
    assert made.steps[-1].status == NOTE, "arms that were not interleaved support no verdict"
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["results"][0]["metrics"]["median_ms"] = 0.013
    (folder / "metrics.json").write_text(json.dumps(metrics))
    path = next(folder.rglob("*on_t1.etdump"))
    path.write_bytes(trace(20)[:200])
    faults = failed(validate(str(folder), store))
    assert "gives a median of 0.013" in faults["metrics"]
    assert "cut off" in faults[f"{path.stem}: trace"]
    assert failed(validate(str(path), store))


def test_a_foreign_run_passes_as_evidence_and_says_that_it_supports_no_verdict(tmp_path: Path):
    store = Store(tmp_path / "data")
    [taken, _] = ingest_paths(store, [write_kit_folder(tmp_path)], Facts()).traces
    made = validate(taken.run_id, store)
    assert made.ok
    assert "supports no verdict" in str(made.steps[-1].problem)
    (store.run_dir(taken.run_id) / "trace.etdump").write_bytes(trace(99))
    assert "trace.etdump" in failed(validate(taken.run_id, store))["files"]


def test_a_changed_export_is_noticed(pair_files: Exported, tmp_path: Path):
    folder = Path(shutil.copytree(pair_files.folder, tmp_path / "out"))
    assert validate(str(folder), pair_files.store).ok
    csv = folder / pair_files.table("on", "exec_all_runs_timeline.csv").relative_to(pair_files.folder)
    lines = csv.read_text().splitlines()
    csv.write_text("\n".join([*lines[:5], *lines[6:]]) + "\n")
    trace_file = next(folder.glob("*.pftrace"))
    trace_file.write_bytes(trace_file.read_bytes()[:-3])
    faults = failed(validate(str(folder), pair_files.store))
    assert set(faults) == {"files", "timeline", "trace"}
    assert "do not add up" in faults["timeline"]


def test_the_command_prints_steps_and_its_exit_code_tells(pair_files: Exported, run_copy: Path):
    words = ["--data", str(pair_files.store.root), "validate"]
    good = CliRunner().invoke(main, [*words, pair_files.run("off")["run_id"]])
    assert good.exit_code == 0, good.output
    assert "nanoseconds" in good.output
    _no_trace(run_copy)
    bad = CliRunner().invoke(main, [*words, str(run_copy), "--json"])
    assert bad.exit_code == 1
    [told] = json.loads(bad.stdout)
    assert not told["ok"]
    assert any(step["remedy"] for step in told["steps"] if step["status"] == FAILED)
    assert CliRunner().invoke(main, [*words, "no-such-run"]).exit_code == 1


@pytest.mark.parametrize(
    ("what", "said"), [("", "no run, file or folder"), ("/", "not a folder that can be")]
)
def test_neither_nothing_nor_the_whole_machine_is_validated(
    pair_files: Exported, run_copy: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: str
):
    monkeypatch.chdir(run_copy)
    with pytest.raises(Sme2Error, match=said):
        validate(what, pair_files.store)


def test_an_experiment_file_is_checked_as_config_check_does(tmp_path: Path):
    path = tmp_path / "experiment.yaml"
    path.write_text("modles: [toy_cnn-fp32]\n")
    assert "models" in " ".join(failed(validate(str(path), Store(tmp_path))).values())
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    with pytest.raises(Sme2Error, match="not a file that can be validated"):
        validate(str(notes), Store(tmp_path))
