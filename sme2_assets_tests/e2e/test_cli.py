"""`sme2` as a user types it, with a data folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.targets.host import host_has_sme2, host_platform, is_arm64
from sme2_assets_tests.e2e.conftest import make_data_folder

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path) -> str:
    return str(make_data_folder(tmp_path_factory.mktemp("cli") / "data", artifacts_dir).root)


@pytest.fixture
def sme2(data: str) -> Cli:
    def call(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(
            main, ["--data", data, *words], env={"COLUMNS": "200"}, catch_exceptions=False
        )
        assert done.exit_code == code, done.output
        return done

    return call


def test_doctor_finds_what_the_tests_use(sme2: Cli):
    findings = {step["name"]: step for step in json.loads(sme2("doctor", "--json").stdout)["steps"]}
    assert findings["executorch"]["status"] == "passed"
    assert findings["C++ compiler"]["status"] == "passed"
    assert findings["SME2 in this CPU"]["status"] == ("passed" if host_has_sme2() else "note")
    assert all(finding["remedy"] for finding in findings.values() if finding["status"] != "passed")
    assert "executorch" in sme2("doctor").stdout


def test_models_are_listed_for_people_and_for_programs(sme2: Cli):
    listed = json.loads(sme2("models", "--json").stdout)
    assert [model["model"] for model in listed][:2] == ["toy_cnn", "mobilenet_v3_small"]
    assert listed[0]["precisions"] == ["fp32", "fp16", "int8"]
    assert "mobilenet_v3_small" in sme2("models").stdout


def test_targets_say_what_is_missing(sme2: Cli):
    states = {state["target"]: state for state in json.loads(sme2("targets", "--json").stdout)}
    native = states[f"{host_platform()}-sme2_off"]
    assert native["ok"]
    assert native["fidelity"] == ("hardware" if is_arm64() else "reference")
    assert ("says nothing about SME2" in native["detail"]) != is_arm64()
    assert all(state["remedy"] for state in states.values() if not state["ok"])


def test_an_unknown_model_is_answered_with_the_nearest(sme2: Cli):
    error = sme2("profile", "toy_cn-fp32", code=1).stderr
    assert "toy_cnn" in error
    assert "What to do" in error


def test_a_platform_that_cannot_give_a_state_fails_before_any_work(sme2: Cli):
    # Nobody has a Mac and a Linux machine in one.
    other = "mac" if host_platform() == "linux" else "linux"
    error = sme2("profile", "toy_cnn-fp32", "--platform", other, code=1).stderr
    assert "this host is not" in error
    if not host_has_sme2():
        options = ("--platform", host_platform() or "linux", "--sme2", "on")
        error = sme2("profile", "toy_cnn-fp32", *options, code=1).stderr
        assert "has no SME2" in error
        assert "emulated" in error


def test_bad_flags_are_refused(sme2: Cli):
    assert "0" in sme2("profile", "toy_cnn-fp32", "--threads", "0", code=2).stderr


def test_a_report_of_nothing_says_what_to_run(sme2: Cli):
    assert "sme2 profile mobilenet_v3_small" in sme2("report", "mobilenet_v3_small", code=1).stderr


def test_an_explanation_of_nothing_says_what_to_run(sme2: Cli):
    assert "sme2 profile mobilenet_v3_small" in sme2("explain", "mobilenet_v3_small", code=1).stderr


def test_a_log_that_names_no_kernel_is_an_error_that_says_which_build_would(sme2: Cli, tmp_path: Path):
    log = tmp_path / "runner.log"
    log.write_text("")
    error = sme2("kernel-log", str(log), code=1).stderr
    assert "What to do" in error
    assert "XNNPACK" in error
    log.write_text("Debug (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_6x8__neonfma'.\n")
    [row] = json.loads(sme2("kernel-log", str(log), "--json").stdout)
    assert row["isa"].startswith("neon")


def test_an_empty_warehouse_can_be_asked(sme2: Cli):
    assert "sme2_comparison" in sme2("sql", "SHOW TABLES").stdout
    assert json.loads(sme2("sql", "SELECT count(*) AS n FROM comparisons", "--json").stdout) == [{"n": 0}]


@pytest.mark.parametrize(
    "query", ["DROP TABLE runs", "COPY runs TO '/tmp/runs.csv'", "SELECT 1; DROP TABLE runs", "SELEC 1"]
)
def test_sql_only_reads(sme2: Cli, query: str):
    assert "error:" in sme2("sql", query, code=1).stderr
