"""Experiment files measured for real, through the same assets as everything else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.defs.resources import Lab
from sme2_assets.experiments import run as run_module
from sme2_assets.experiments.plan import Session
from sme2_assets.experiments.run import EXPERIMENT_TAG, Outcome
from sme2_assets.launch import open_instance
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store
from sme2_assets.targets.host import host_platform
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.e2e.conftest import make_data_folder

HOST = host_platform()


@pytest.fixture
def store(tmp_path: Path, artifacts_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    monkeypatch.setenv("SME2_DATA", str(store.root))
    monkeypatch.setenv("DAGSTER_HOME", str(store.dagster_home))
    monkeypatch.delenv("SME2_MODELS", raising=False)
    return store


def sme2(*words: str) -> Result:
    return CliRunner().invoke(main, words, catch_exceptions=False)


@pytest.mark.skipif(HOST is None, reason="no native platform on this host")
def test_a_yaml_file_is_measured_and_a_failing_member_loses_no_other(
    tmp_path: Path, store: Store, runner_binary: RunnerBinary
):
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"models: toy_cnn-fp32\nplatforms: {HOST}\nsme2: off\nrounds: 1\niterations: 2\nwarmup: 0\n"
        "passes: [latency, etdump]\nquiet_patience_s: 0\noutput: out\n"
        "entries:\n  - name: hopeless\n    timeout_s: 0.001\n  - name: fine\n  - name: the-same\n"
    )
    planned = sme2("run", str(file), "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "2 sessions, 4 processes" in planned.stdout
    assert not store.runs.exists()

    done = sme2("run", str(file))
    assert done.exit_code == 1, done.output
    assert "1 of 2 sessions were measured" in done.stdout
    assert "FAILED toy_cnn-fp32" in done.stdout
    assert "What to do" in done.stdout
    assert f"toy_cnn-fp32 on {HOST}, 1 thread" in done.stdout
    [run] = Warehouse(store.warehouse).query("SELECT * FROM runs").to_dict("records")
    assert (run["variant"], run["rounds"], run["iterations"], run["samples"]) == ("toy_cnn-fp32", 1, 2, 0)
    summary = json.loads((tmp_path / "out" / "experiment.json").read_text())
    overview = (tmp_path / "out" / "index.csv").read_text().splitlines()
    assert len(overview) == 1 + sum(session["ok"] for session in summary["sessions"])
    assert (tmp_path / "out" / "index.html").is_file()
    assert [session["ok"] for session in summary["sessions"]] == [False, True]
    assert summary["sessions"][1]["run_ids"] == {"off": run["run_id"]}
    assert summary["sessions"][1]["entries"] == ["fine", "the-same"]
    assert (tmp_path / "out" / f"toy_cnn-fp32-{HOST}-t1-fine" / "export" / "export.json").is_file()
    with dg.DagsterInstance.from_config(str(store.dagster_home)) as instance:
        assert {record.tags[EXPERIMENT_TAG] for record in instance.get_runs()} == {"mine"}


@pytest.mark.skipif(HOST is None, reason="no native platform on this host")
@pytest.mark.parametrize("stops_at_files", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_each_session_keeps_its_output_also_when_somebody_stops_the_others(
    tmp_path: Path,
    store: Store,
    runner_binary: RunnerBinary,
    monkeypatch: pytest.MonkeyPatch,
    stops_at_files: bool,
):
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"models: toy_cnn-fp32\nplatforms: {HOST}\nsme2: off\niterations: 2\nwarmup: 0\n"
        "passes: [latency, etdump]\nquiet_patience_s: 0\noutput: out\n"
        "entries:\n  - rounds: 1\n  - rounds: 2\n  - rounds: 3\n"
    )
    # As an earlier run of the file could have left it.
    folders = [tmp_path / "out" / f"toy_cnn-fp32-{HOST}-t1-rounds_{count}" for count in (1, 2, 3)]
    (folders[0] / "report").mkdir(parents=True)
    (folders[0] / "report" / "report.html").write_text("of another session")
    measured = run_module._measured

    def until_the_third(lab: Lab, instance: object, session: Session, *others: object) -> object:
        if session.wishes["rounds"] == 3:
            raise KeyboardInterrupt
        return measured(lab, instance, session, *others)  # type: ignore[arg-type]

    def until_the_second(lab: Lab, outcome: Outcome, *others: object) -> None:
        write_output(lab, outcome, *others)  # type: ignore[arg-type]
        if stops_at_files and outcome.session.wishes["rounds"] == 2:
            raise KeyboardInterrupt

    write_output = run_module.write_output
    monkeypatch.setattr(run_module, "write_output", until_the_second)
    monkeypatch.setattr(run_module, "_measured", until_the_third)
    assert sme2("run", str(file)).exit_code == 130
    summary = json.loads((tmp_path / "out" / "experiment.json").read_text())["sessions"]
    assert [it["ok"] for it in summary] == [True, True, False]
    assert "stopped before this session was measured" in summary[2]["error"]["what"]
    assert [bool(it["output_error"]) for it in summary] == [False, stops_at_files, False]
    exports = [json.loads((it / "export" / "export.json").read_text()) for it in folders[:2]]
    assert [it["run_id"] for it in exports] == [it["run_ids"]["off"] for it in summary[:2]]
    assert not (folders[0] / "report").exists()
    assert "report.html" not in (tmp_path / "out" / "index.md").read_text()


@pytest.mark.skipif(HOST is None, reason="no native platform on this host")
@pytest.mark.parametrize(
    "sent",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)],
    ids=lambda sent: sent.name,
)
def test_who_interrupts_an_experiment_stops_all_of_it(
    tmp_path: Path,
    store: Store,
    runner_binary: RunnerBinary,
    sent: signal.Signals,
):
    """A session that is interrupted is none that failed, after which the others would be measured."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"models: toy_cnn-fp32\nplatforms: {HOST}\nsme2: off\npasses: [latency, etdump]\n"
        "warmup: 0\nquiet_patience_s: 0\nentries:\n  - name: endless\n    rounds: 1000\n"
        "    iterations: 1\n  - name: never-begun\n    rounds: 1\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "sme2_assets.cli", "run", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell in the background starts its children deaf to this signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    assert started.stderr is not None
    assert any("round 2 of 1000" in line for line in started.stderr)
    if sent == signal.SIGINT:
        # As a terminal does it: to every program there.
        os.killpg(started.pid, sent)
    else:
        started.send_signal(sent)
    _, errors = started.communicate(timeout=600)
    assert started.returncode == 130
    assert "session 2 of 2" not in errors
    assert "Traceback" not in errors
    with open_instance(store) as instance:
        statuses = [run.status for run in instance.get_runs()]
    assert statuses[0] == dg.DagsterRunStatus.CANCELED
    assert dg.DagsterRunStatus.FAILURE not in statuses
    assert not list(store.runs.glob("[!.]*"))


def test_a_configuration_of_the_kit_runs_unchanged(
    tmp_path: Path,
    store: Store,
    runner_binary: RunnerBinary,
    emulator: Qemu,
    exported: Callable[[str], ExportedModel],
):
    """A checkout as the kit leaves it: the exported file, and a configuration for a Mac."""
    artifacts = tmp_path / "kit" / "model_profiling" / "out_toy_cnn" / "artifacts"
    configs = tmp_path / "kit" / "model_profiling" / "configs"
    artifacts.mkdir(parents=True)
    configs.mkdir()
    shutil.copyfile(exported("toy_cnn-fp32").pte, artifacts / "toy_cnn_xnnpack_fp32.pte")
    file = configs / "toy_cnn_run.json"
    arms = [("on", "mac-arm64"), ("off", "mac-arm64-sme2-off")]
    config = {
        "model": "model_profiling/out_toy_cnn/artifacts/toy_cnn_xnnpack_fp32.pte",
        "output_root": "model_profiling/out_toy_cnn/runs/mac",
        "experiments": [
            {
                "name": f"mac_sme2_{state}",
                "runner_path": f"executorch/cmake-out/{build}/executor_runner",
                "mode": "timing",
                "runs": 10,
                "warmup": 1,
                "threads": [1],
            }
            for state, build in arms
        ],
        "analysis": {
            "compare_pairs": [
                {
                    "baseline": {"experiment": "mac_sme2_off", "threads": 1},
                    "candidate": {"experiment": "mac_sme2_on", "threads": 1},
                    "label": "SME2 on a Mac",
                }
            ]
        },
    }
    file.write_text(json.dumps(config))
    if HOST != "mac":
        elsewhere = sme2("run", str(file))
        assert elsewhere.exit_code == 1
        assert "mac, SME2 on" in elsewhere.stderr
        assert "--platform emulated" in elsewhere.stderr
        assert not store.runs.exists()

    done = sme2("run", str(file), "--platform", "emulated")
    assert done.exit_code == 0, done.output
    assert "note: runner_path is not used" in done.stderr
    assert "SME2 on a Mac: toy_cnn_xnnpack_fp32-as_is on emulated, 1 thread" in done.stdout
    assert "on emulated: kernel evidence" in done.stdout
    assert "1 of 1 sessions were measured" in done.stdout
    runs = Warehouse(store.warehouse).query("SELECT sme2, variant FROM runs ORDER BY sme2")
    assert runs["sme2"].to_list() == ["off", "on"]
    assert set(runs["variant"]) == {"toy_cnn_xnnpack_fp32-as_is"}
    output = tmp_path / "kit" / config["output_root"]
    [session] = [folder for folder in output.iterdir() if folder.is_dir()]
    assert session.name == "toy_cnn_xnnpack_fp32-as_is-emulated-t1-mac_sme2"
    assert (session / "report" / "report.md").is_file()
    told = json.loads((session / "export" / "manifest.json").read_text())
    assert told["config"] == str(file.resolve())
    assert re.fullmatch("[0-9a-f]{40}", told["executorch"]["actual_sha"])
    assert {"etdump", "log"} <= set(told["results"][0]["artifacts"])
    checked = sme2("validate", str(output))
    assert checked.exit_code == 0, checked.output
    assert json.loads((output / "experiment.json").read_text())["sessions"][0]["ok"]
