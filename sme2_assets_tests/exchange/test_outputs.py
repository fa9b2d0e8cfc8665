"""The output folder of an experiment is one that our check and the kit's own tools can read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sme2_assets.diagnostics.validation import validate
from sme2_assets.exchange.outputs import SUMMARY_FILE, write_kit_files
from sme2_assets.store import Store
from sme2_assets_tests.exchange.measured_pair import Exported, pair_files

__all__ = ["pair_files"]


@pytest.fixture
def output(pair_files: Exported, tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "linux"
    sessions = [folder / name for name in ("toy_cnn-fp32-linux-t1", "toy_cnn-fp32-linux-t2")]
    for session in sessions:
        shutil.copytree(pair_files.folder, session / "export")
    write_kit_files(folder, sessions)
    (folder / SUMMARY_FILE).write_text(json.dumps({"sessions": [{"ok": True, "output_error": None}] * 2}))
    return folder


def test_the_manifest_of_an_output_folder_leads_to_every_file_that_the_kits_check_asks_for(output: Path):
    """What validate_results.py of the kit demands of a run folder."""
    manifest, metrics = (
        json.loads((output / name).read_text()) for name in ("manifest.json", "metrics.json")
    )
    assert {"model", "output_root", "executorch"} <= set(manifest)
    assert len(manifest["results"]) == len(metrics["results"]) == 4
    for result in manifest["results"]:
        assert result["mode"] == "timing"
        for kind in ("etdump", "log", "timeline_all", "robust_stats"):
            assert (output / result["artifacts"][kind]["path"]).is_file()
    assert all(result["metrics"]["latency_ms"] for result in metrics["results"])


def test_an_output_folder_is_validated_with_all_its_sessions(output: Path, tmp_path: Path):
    store = Store(tmp_path / "data")
    made = validate(str(output), store)
    assert made.failed == []
    assert {step.name.partition(": ")[0] for step in made.steps} >= {"toy_cnn-fp32-linux-t1", "manifest"}
    trace = next((output / "toy_cnn-fp32-linux-t2").rglob("*.etdump"))
    trace.write_bytes(trace.read_bytes()[:-1])
    [failed] = validate(str(output), store).failed
    assert failed.name == "toy_cnn-fp32-linux-t2: files"


def test_an_output_folder_without_one_of_its_sessions_is_not_valid(output: Path, tmp_path: Path):
    summary = output / SUMMARY_FILE
    summary.write_text(json.dumps({"sessions": [{"ok": True, "output_error": None}, {"ok": False}]}))
    [failed] = validate(str(output), Store(tmp_path / "data")).failed
    assert "1 of 2" in str(failed.problem)


def test_an_experiment_of_which_nothing_was_exported_leaves_no_files_of_an_earlier_one(output: Path):
    write_kit_files(output, [])
    assert not (output / "manifest.json").exists()
    assert not (output / "metrics.json").exists()
