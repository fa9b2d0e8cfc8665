"""A session with the real runner, and what remains when it goes wrong: nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from sme2_assets import heartbeat
from sme2_assets.analysis.comparison import why_outputs_differ
from sme2_assets.errors import EvidenceError, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.evidence.arms import ARMS_FILE, ArmsNumerics
from sme2_assets.evidence.blind import Trial, revealed
from sme2_assets.evidence.device import native_fidelity
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.export import export_model
from sme2_assets.models.reference import STEPS
from sme2_assets.profiling import between_arms
from sme2_assets.profiling.arms import ArmSpec, aa_arms, same_runner, sme2_arms
from sme2_assets.profiling.blind import blind_trial
from sme2_assets.profiling.one_pass import Bench, _known_duration
from sme2_assets.profiling.plan import Plan, plan_for
from sme2_assets.profiling.record import ended_steady
from sme2_assets.profiling.session import _enough, measure_session
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store, sha256_of_file
from sme2_assets.targets.environment.processes import Counters
from sme2_assets.targets.environment.snapshot import Snapshot, take_snapshot
from sme2_assets.targets.host import host_arch, host_has_sme2, host_platform
from sme2_assets.targets.local import NativeTarget
from sme2_assets.toolchain import Availability
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.ingest import rows_of_run
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.models import small

HOST = host_platform() or ""
SHORT = plan_for(
    "hardware",
    rounds=2,
    warmup=1,
    iterations=2,
    kernel_rounds=1,
    kernel_sampling_s=0.02,
    timeout_s=600,
    quiet_patience_s=0,
)

pytestmark = pytest.mark.skipif(not HOST, reason="no native platform on this host")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def model(exported: Callable[[str], ExportedModel]) -> ExportedModel:
    return exported("toy_cnn-fp32")


@pytest.fixture
def faulty_runner(tmp_path: Path, runner_binary: RunnerBinary) -> Callable[[str], RunnerBinary]:
    """A runner whose place a shell script has taken."""

    def make(script: str) -> RunnerBinary:
        path = tmp_path / "faulty_runner"
        path.write_text(f"#!/bin/sh\nreal={runner_binary.path}\n{script}\n")
        path.chmod(0o755)
        return replace(runner_binary, path=path)

    return make


def measure(store: Store, model: ExportedModel, runner: RunnerBinary, plan: Plan = SHORT) -> list[Manifest]:
    return measure_session(
        store, NativeTarget(HOST), model, same_runner(runner), sme2_arms(["off"]), plan, log=print
    )


def finished_runs(store: Store) -> list[Path]:
    """Everything in the folder of runs, hidden leftovers included."""
    return sorted(store.runs.iterdir()) if store.runs.exists() else []


def test_two_precisions_are_one_session_and_each_answers_to_its_own_eager_model(
    store, exported, runner_binary
):
    fp16, int8 = exported("toy_cnn-fp16"), exported("toy_cnn-int8")
    specs = [ArmSpec("a", "off", model=fp16), ArmSpec("b", "off", model=int8)]
    manifests = measure_session(
        store,
        NativeTarget(HOST),
        fp16,
        same_runner(runner_binary),
        specs,
        SHORT,
        print,
        factor="precision",
    )
    assert [(it.identity.precision, it.identity.pte_sha256) for it in manifests] == [
        ("fp16", fp16.pte_sha256),
        ("int8", int8.pte_sha256),
    ]
    for manifest, model in zip(manifests, (fp16, int8), strict=True):
        assert (manifest.experiment, manifest.factor, manifest.arms) == ("arms", "precision", 2)
        info = manifest.info
        assert info.wrong is None
        assert info.sqnr_db >= info.sqnr_threshold_db
        assert info.arms_sqnr_db is None, "two programs compute two things"
        folder = store.run_dir(manifest.run_id)
        assert not (folder / ARMS_FILE).exists()
        assert (folder / "operators.json").read_bytes() == model.operators.read_bytes()
        assert all(str(model.pte) in process.command for process in info.processes)
    assert [p.round for p in manifests[0].info.processes] == [p.round for p in manifests[1].info.processes]
    warehouse = Warehouse(store.warehouse)
    take_session(store, warehouse, store.run_dir(manifests[0].run_id))
    warehouse.publish()
    rows = compare_session(warehouse, manifests[0].session_id)
    model_row = rows[rows["level"] == "model"].iloc[0]
    assert (model_row["factor"], model_row["a_value"], model_row["b_value"]) == ("precision", "fp16", "int8")
    # Two rounds prove nothing, and that is said.
    assert (model_row["verdict"], model_row["n"]) == ("insufficient data", 2)
    assert model_row["fidelity"] == native_fidelity(host_arch())


def test_arms_of_one_program_are_set_differently_and_compute_the_same(store, model, runner_binary):
    specs = [ArmSpec(label, "off", settings={"threads": n}) for label, n in (("a", 1), ("b", 2), ("c", 3))]
    manifests = measure_session(
        store, NativeTarget(HOST), model, same_runner(runner_binary), specs, SHORT, print, factor="threads"
    )
    assert [it.identity.threads for it in manifests] == [1, 2, 3]
    for manifest in manifests:
        folder = RunFolder.verified(store.run_dir(manifest.run_id))
        assert {each.result.threads for each in folder.processes()} == {manifest.identity.threads}
        assert manifest.info.plan["threads"] == manifest.identity.threads
        near = folder.arms()
        assert near is not None
        assert near.fault is None


def test_a_program_that_another_version_refuses_names_the_version_and_leaves_nothing(
    store, model, runner_binary, faulty_runner
):
    older = replace(
        faulty_runner("echo 'sme2_runner: error: not a program' >&2; exit 3"), executorch_version="1.5.0"
    )
    specs = [ArmSpec("a", "off", runner=older), ArmSpec("b", "off")]
    with pytest.raises(
        Sme2Error, match=r"toy_cnn-fp32 with SME2 off and ExecuTorch 1\.5\.0, round 1"
    ) as raised:
        measure_session(
            store, NativeTarget(HOST), model, same_runner(runner_binary), specs, SHORT, print, "executorch"
        )
    assert "another version may not run it" in str(raised.value)
    assert finished_runs(store) == []


def test_a_process_under_emulation_says_what_it_does_and_that_it_is_alive(monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS", 0.001)
    said, alive = [], threading.Event()

    def log(line: str) -> None:
        said.append(line)
        if line.startswith("still running a model, for "):
            alive.set()

    workspace = Mock(run=lambda *_: alive.wait(60))
    target = Mock(fidelity="emulated", workspace=lambda: nullcontext(workspace))
    with Bench(target, SHORT, log) as bench:
        assert bench.run("running a model", [], {})
    assert said[0] == "running a model"


def test_each_pass_of_a_session_says_where_it_is(store, model, runner_binary, monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS", 0.001)
    said: list[str] = []
    specs = sme2_arms(["off"])
    measure_session(store, NativeTarget(HOST), model, same_runner(runner_binary), specs, SHORT, said.append)
    for number, kind in enumerate(SHORT.passes_of_round(0), start=1):
        place = (
            f"running toy_cnn-fp32 with SME2 off: {kind} (pass {number} of {len(SHORT.passes_of_round(0))}"
        )
        # How long a traced pass takes is known from the plain one before it.
        known = {"latency": ", round 1)", "etdump": ", round 1, about "}.get(kind, ", round 1")
        assert any(line.startswith(f"still {place}{known}") for line in said), (kind, said)


def test_what_a_pass_takes_is_said_where_a_pass_before_it_tells():
    arm = Mock(processes=[Mock(pass_kind="latency", seconds=20.0)])
    told = {kind: _known_duration(arm, kind) for kind in ("etdump", "work", "kernels")}
    assert told == {"etdump": ", about 20 s", "work": ", at most about 2 min 0 s", "kernels": ""}
    arm.processes += [Mock(pass_kind="work", seconds=59.6)]
    assert _known_duration(arm, "work") == ", about 1 min 0 s", "the last round knows better"


@pytest.mark.parametrize(
    ("most", "said"),
    [(5, " of 5, about 1 min 30 s left"), (9, " of 5 or more, about 1 min 30 s or more left")],
)
def test_what_the_other_rounds_take_is_said_once_one_was_timed(most, said):
    assert _enough([], replace(SHORT, rounds=5, max_rounds=most), 2, 60.0) == (False, said)


def test_a_session_leaves_its_evidence_and_a_manifest_that_proves_it(store, model, runner_binary):
    [manifest] = measure(store, model, runner_binary)
    folder = store.run_dir(manifest.run_id)
    assert finished_runs(store) == [folder]
    assert RunFolder.open(folder).manifest == manifest
    assert not manifest.paired
    assert [(p.round, p.pass_kind, p.exit_code) for p in manifest.info.processes] == [
        (0, "latency", 0),
        (0, "etdump", 0),
        (0, "kernels", 0),
        (1, "latency", 0),
        (1, "etdump", 0),
    ]
    for name, digest in manifest.info.file_sha256.items():
        assert sha256_of_file(folder / name) == digest
    evidence = {"outputs", "result.json", "runner.log", "trace.etdump"}
    assert {path.name for path in (folder / "round_01" / "etdump").iterdir()} == evidence
    assert {path.name for path in (folder / "round_00" / "kernels").iterdir()} == {*evidence, "samples.json"}
    assert (folder / "operators.json").read_bytes() == model.operators.read_bytes()
    assert manifest.info.sqnr_db >= manifest.info.sqnr_threshold_db
    assert manifest.identity.pte_sha256 == sha256_of_file(model.pte)
    assert not manifest.context.cpu["sme2_usable"]
    assert "NaN" not in (folder / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("script", "timeout_s", "message"),
    [
        ("kill -9 $$", 600, "signal 9"),
        ("kill -SEGV $$", 600, "signal 11"),
        ("exit 3", 600, "model"),
        ("exit 0", 600, "did not write"),
        ("sleep 600", 1, "did not end within"),
    ],
)
def test_a_runner_that_fails_leaves_no_run(store, model, faulty_runner, script, timeout_s, message):
    with pytest.raises(RunnerError, match=message) as caught:
        measure(store, model, faulty_runner(script), replace(SHORT, timeout_s=timeout_s))
    assert caught.value.remedy
    assert finished_runs(store) == []


def test_a_crash_in_a_later_round_leaves_only_the_older_run(store, model, runner_binary, faulty_runner):
    [first] = measure(store, model, runner_binary)
    crashing = faulty_runner('case "$*" in *_01_etdump*) kill -9 $$;; esac; exec "$real" "$@"')
    with pytest.raises(RunnerError, match="round 2, etdump pass"):
        measure(store, model, crashing)
    assert [path.name for path in finished_runs(store)] == [first.run_id]


def test_an_output_that_is_not_finite_is_no_measurement(store, model, runner_binary, tmp_path):
    nan_input = tmp_path / "nan.npy"
    np.save(nan_input, np.full_like(np.load(model.inputs[0]), np.nan))
    with pytest.raises(RunnerError, match=r"not finite|non-finite|NaN"):
        measure(store, replace(model, inputs=[nan_input]), runner_binary)
    assert finished_runs(store) == []


def test_a_broken_result_file_is_not_believed(store, model, faulty_runner):
    truncating = faulty_runner(
        '"$real" "$@" || exit $?\n'
        'while [ $# -gt 0 ]; do [ "$1" = --result ] && printf "{" > "$2"; shift; done'
    )
    with pytest.raises(EvidenceError):
        measure(store, model, truncating)
    assert finished_runs(store) == []


def test_a_runner_that_made_fewer_inferences_than_asked_is_not_believed(store, model, faulty_runner):
    lazy = faulty_runner('exec "$real" "$@" --iterations 1')
    with pytest.raises(RunnerError):
        measure(store, model, lazy)
    assert finished_runs(store) == []


@pytest.mark.skipif(host_has_sme2(), reason="needs a CPU without SME2")
def test_a_state_the_machine_cannot_give_is_refused_before_anything_runs(store, model, runner_binary):
    target = NativeTarget(HOST)
    with pytest.raises(TargetUnavailable, match="has no SME2"):
        measure_session(
            store, target, model, same_runner(runner_binary), sme2_arms(["off", "on"]), SHORT, log=print
        )
    assert finished_runs(store) == []


@pytest.mark.skipif(host_has_sme2(), reason="needs a CPU without SME2")
def test_the_runner_is_believed_and_not_the_target(store, model, runner_binary):
    class Boastful(NativeTarget):
        def availability(self, sme2: str) -> Availability:
            return Availability(True, "claims to have SME2")

    with pytest.raises(RunnerError, match="SME2 usable: False"):
        measure_session(
            store, Boastful(HOST), model, same_runner(runner_binary), sme2_arms(["on"]), SHORT, log=print
        )
    assert finished_runs(store) == []


def test_a_manifest_of_another_schema_is_refused(store, model, runner_binary):
    [manifest] = measure(store, model, runner_binary, replace(SHORT, rounds=1, max_rounds=1))
    folder = store.run_dir(manifest.run_id)
    raw = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**raw, "schema": 99}))
    with pytest.raises(Sme2Error, match="version 99"):
        RunFolder.open(folder)


def test_a_runner_is_bound_to_the_cpus_that_were_chosen(store, model, runner_binary):
    if HOST != "linux":
        pytest.skip("CPUs are chosen on Linux and Android")
    [manifest] = measure(store, model, runner_binary, replace(SHORT, rounds=1, max_rounds=1, cpus="0"))
    assert manifest.identity.cpus == "0"
    assert all("--cpus" in process.command for process in manifest.info.processes)
    with pytest.raises(Sme2Error, match="CPU"):
        measure(store, model, runner_binary, replace(SHORT, cpus="4096"))
    with pytest.raises(Sme2Error, match="quality of service"):
        measure(store, model, runner_binary, replace(SHORT, qos="utility"))


class Untimed(NativeTarget):
    """This host, as if none of its times were read."""

    arms_at_once = True


@pytest.mark.parametrize(("target", "at_once"), [(NativeTarget, False), (Untimed, True)])
def test_arms_run_side_by_side_only_where_no_time_is_read(
    store, model, faulty_runner, tmp_path, target, at_once
):
    # Each process leaves a mark while it runs, and looks for that of the other arm.
    log, looks = tmp_path / "meetings", 1500 if at_once else 3
    meeting = faulty_runner(
        f'mark={tmp_path}/running.$$; touch "$mark"; n=0\n'
        f'others() {{ [ "$(ls {tmp_path}/running.* | wc -l)" -gt 1 ] || [ -e {log} ]; }}\n'
        f"while ! others && [ $n -lt {looks} ]; do sleep 0.1; n=$((n+1)); done\n"
        f"others && echo met >> {log}\n"
        '"$real" "$@"; code=$?; rm "$mark"; exit $code'
    )
    manifests = measure_session(
        store,
        target(HOST),
        model,
        same_runner(meeting),
        aa_arms("off"),
        replace(SHORT, rounds=1, max_rounds=1),
        print,
    )
    assert [len(manifest.info.processes) for manifest in manifests] == [3, 3]
    assert [manifest.info.processes[0].order for manifest in manifests] in ([0, 1], [1, 0])
    assert log.exists() == at_once


def test_a_failure_of_one_of_two_arms_at_once_leaves_no_run(store, model, faulty_runner):
    failing = faulty_runner('case "$*" in */b_00_etdump*) exit 3;; esac; exec "$real" "$@"')
    with pytest.raises(RunnerError, match="round 1, etdump pass"):
        measure_session(store, Untimed(HOST), model, same_runner(failing), aa_arms("off"), SHORT, log=print)
    assert finished_runs(store) == []


def test_who_stops_a_session_waits_for_neither_of_two_arms_at_once(
    store, model, faulty_runner, tmp_path, request
):
    # A shell in the background ignores it, and so does all that is started there.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, ours))
    released = tmp_path / "released"
    endless = faulty_runner(
        f"touch {tmp_path}/running.$$; while [ ! -e {released} ]; do sleep 0.1; done; exit 3"
    )
    stopped = threading.Event()

    def stop() -> None:
        while len(list(tmp_path.glob("running.*"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        stopped.wait(120)
        released.touch()

    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            measure_session(
                store, Untimed(HOST), model, same_runner(endless), aa_arms("off"), SHORT, log=print
            )
        assert not released.exists(), "both were killed"
    finally:
        stopped.set()
        stopping.join()
    assert finished_runs(store) == []


def test_identical_arms_are_interleaved_and_never_current(store, model, runner_binary):
    manifests = measure_session(
        store, NativeTarget(HOST), model, same_runner(runner_binary), aa_arms("off"), SHORT, log=print
    )
    assert [manifest.arm for manifest in manifests] == ["a", "b"]
    assert {manifest.experiment for manifest in manifests} == {"aa"}
    assert len({manifest.session_id for manifest in manifests}) == 1
    orders = [
        [p.order for p in manifest.info.processes if p.pass_kind == "latency"] for manifest in manifests
    ]
    assert sorted(orders) == [[0, 1], [1, 0]], "each arm begins once"
    assert manifests[0].info.arms_sqnr_db == 200.0, "identical arms give identical outputs"
    compared = [RunFolder.verified(store.run_dir(manifest.run_id)).arms() for manifest in manifests]
    assert compared[0] == compared[1]
    assert compared[0].fault is None
    assert compared[0].same_outputs, "the program with taps computes what the measured one does"
    assert {value.equal_share for value in compared[0].values} == {1.0}
    assert len(compared[0].values) == 1 + 8, "the output, seven convolutions and a linear layer"


def test_a_fault_between_that_the_outputs_hide_is_found(store, model, faulty_runner):
    # The last kilobyte of what the second convolution gives becomes zero in one arm, the outputs stay right.
    wrong = faulty_runner(
        '"$real" "$@" || exit; case "$*" in */b_tapped_outputs*) '
        'file=$(echo "$*" | sed "s/.*--outputs \\([^ ]*\\).*/\\1/")/output_2.npy; '
        'blocks=$(($(stat -c %s "$file") / 1024)); '
        'dd if=/dev/zero of="$file" bs=1024 count=1 seek=$((blocks - 1)) conv=notrunc;; esac'
    )
    [first, second] = measure_session(
        store, NativeTarget(HOST), model, same_runner(wrong), aa_arms("off"), SHORT, log=print
    )
    arms = RunFolder.verified(store.run_dir(second.run_id)).arms()
    assert first.info.output_sha256 == second.info.output_sha256
    assert [value.name for value in arms.values if value.fault] == ["conv2d_1"]
    assert "conv2d_1 (expand.0.0)" in str(arms.fault)
    run = rows_of_run(store.run_dir(second.run_id)).runs.iloc[0].to_dict()
    assert run["arms_fault"] == arms.fault
    assert "expand.0.0" in str(why_outputs_differ(run, run))


def test_a_program_with_taps_that_fails_costs_the_values_between_and_not_the_session(
    store, model, faulty_runner
):
    failing = faulty_runner('case "$*" in *tapped.pte*) exit 5;; esac; exec "$real" "$@"')
    [_, second] = measure_session(
        store, NativeTarget(HOST), model, same_runner(failing), aa_arms("off"), SHORT, log=print
    )
    arms = RunFolder.verified(store.run_dir(second.run_id)).arms()
    assert [value.name for value in arms.values] == ["output 0"]
    assert "program with taps failed" in str(arms.only_outputs)
    assert len(arms.left_out) == 8


@pytest.mark.parametrize("fault", ["full disk", "damage"])
def test_taps_that_cannot_be_restored_do_not_cost_the_session(
    store, model, runner_binary, fault, tmp_path, monkeypatch
):
    if fault == "damage":
        path = tmp_path / "tapped.npz"
        path.write_bytes(model.tapped.read_bytes()[:100])
        model = replace(model, tapped=path)
    else:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(between_arms, "write_restored", Mock(side_effect=full))
    [_, second] = measure_session(
        store, NativeTarget(HOST), model, same_runner(runner_binary), aa_arms("off"), SHORT, log=print
    )
    arms = RunFolder.verified(store.run_dir(second.run_id)).arms()
    assert [value.name for value in arms.values] == ["output 0"]
    said = {"full disk": "No space left on device", "damage": "is damaged"}[fault]
    assert said in str(arms.only_outputs)


def test_rounds_are_added_until_the_interval_is_narrow(store, model, runner_binary):
    wide = replace(SHORT, rounds=6, max_rounds=8, iterations=1, interval_width=0.0, budget_s=6000)
    wide = replace(wide, passes=("latency",))
    [first, _] = measure_session(
        store, NativeTarget(HOST), model, same_runner(runner_binary), aa_arms("off"), wide, log=print
    )
    assert len(first.info.environment) == 2 * 8, "an interval of no width is never reached"
    easy = replace(wide, interval_width=1e9)
    [first, _] = measure_session(
        store, NativeTarget(HOST), model, same_runner(runner_binary), aa_arms("off"), easy, log=print
    )
    assert len(first.info.environment) == 2 * 6, "any interval will do, but not before the least number"
    broke = replace(wide, budget_s=0.0)
    [first, _] = measure_session(
        store, NativeTarget(HOST), model, same_runner(runner_binary), aa_arms("off"), broke, log=print
    )
    assert len(first.info.environment) == 2 * 6, "a budget of nothing still buys the least number"


@pytest.mark.parametrize(
    ("steady", "outcome"),
    [
        ([], None),
        ([None, None], None),
        ([True, None], True),
        ([False], False),
        ([True] * 9 + [False], True),
        ([True] * 8 + [False] * 2, False),
        ([False] * 20, False),
    ],
)
def test_one_disturbed_process_in_ten_does_not_make_a_run_unsteady(steady, outcome):
    assert ended_steady([RunnerResult.model_construct(steady=each) for each in steady]) is outcome


def test_a_process_warms_up_and_is_timed_for_a_while(store, model, runner_binary):
    plan = replace(SHORT, rounds=1, max_rounds=1, warmup_s=0.05, timed_s=0.02)
    [manifest] = measure(store, model, runner_binary, plan)
    assert manifest.info.steady in (True, False)
    for process in RunFolder.open(store.run_dir(manifest.run_id)).processes():
        assert process.result.warmup_wall_ns >= 50_000_000
        if process.facts.pass_kind != "kernels":
            assert process.result.timed_wall_ns >= 20_000_000 or process.result.iterations == 200


def test_a_blind_trial_keeps_the_times_and_apart_from_them_the_truth(store, model, runner_binary):
    plan = replace(SHORT, passes=("latency",))
    made = blind_trial(store, NativeTarget(HOST), model, same_runner(runner_binary), 400.0, plan, log=print)
    assert finished_runs(store) == []
    folder = store.blind / made.session_id
    assert Trial.read(folder / "trial.json") == made
    assert "400" not in {str(value) for value in made.as_json().values()}
    assert revealed(folder, made).dose_percent == 400.0
    assert len(made.a_ns) == len(made.b_ns) == 2
    assert 0 < made.inference_seconds < made.seconds


class WatchedTarget(NativeTarget):
    """This host as if it were left alone, but that a hypervisor steals `stolen_s` of every second."""

    def __init__(self, stolen_s: float) -> None:
        super().__init__(HOST)
        self.stolen_s = stolen_s
        self.looks: list[float] = []

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        self.looks.append(sample_s)
        now_s = time.monotonic()
        counters = Counters(clock_s=now_s, stolen_s=self.stolen_s * now_s)
        seen = take_snapshot(sample_s=0)
        quiet = {
            "other_cores": 0.0,
            "heavy_processes": [],
            "temperature_c": None,
            "throttled": [],
            "battery": None,
        }
        return replace(seen, counters=counters, **quiet)


@pytest.mark.parametrize(("stolen_s", "looks"), [(0.0, 1), (0.5, 3)])
def test_a_round_that_nothing_disturbed_is_followed_by_the_next_at_once(
    store, model, runner_binary, stolen_s, looks
):
    target = WatchedTarget(stolen_s)
    plan = replace(SHORT, rounds=3, max_rounds=3, kernel_rounds=0, quiet_patience_s=600.0)
    [manifest] = measure_session(
        store, target, model, same_runner(runner_binary), sme2_arms(["off"]), plan, log=print
    )
    assert (target.looks.count(0.2), target.looks.count(0)) == (looks, 3)
    assert bool(manifest.info.flags) is (stolen_s > 0)
    assert len(manifest.info.environment) == 6, "each round has the machine before and after it all the same"


def test_a_model_with_state_is_compared_step_by_step_however_many_inferences_a_pass_runs(
    store, artifacts_dir, runner_binary
):
    spec = small.spec("remembering", small.Remembering, small.values(2, 8))
    model = export_model(spec, small.variant("remembering"), artifacts_dir, log=print)
    runners = same_runner(runner_binary)
    manifests = measure_session(
        store, NativeTarget(HOST), model, runners, aa_arms("off"), replace(SHORT, rounds=1), log=print
    )
    for manifest in manifests:
        assert manifest.info.eager_fault is None
        assert [agreement["output"] for agreement in manifest.info.agreements] == list(range(STEPS))
        between = ArmsNumerics.read(store.run_dir(manifest.run_id) / ARMS_FILE)
        assert between.fault is None
        assert between.same_outputs
        assert [value.name for value in between.values] == [
            *(f"output 0, step {step + 1}" for step in range(STEPS)),
            "linear",
        ]
