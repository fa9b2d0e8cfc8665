"""A deployment as docs/deployment.md describes it, all of it real and on loopback.

PostgreSQL, Redis, an S3 server; code server, webserver, daemon; three workers with data folders and Dagster
homes of their own, so that they share nothing but the servers; two Linux machines over SSH.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import fsspec
import psycopg2
import pytest

from sme2_assets.evidence.folder import run_folders
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.report.night import nights
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.shared import CURRENT
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.servers import BUCKET, free_port, listens, postgres, redis, stop
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine

PROGRAMS = Path(sys.executable).parent
VARIANTS = ["toy_cnn-fp32", "toy_cnn-fp16"]
SETTINGS = {"rounds": 4, "warmup": 0, "iterations": 1, "kernel_rounds": 0, "quiet_patience_s": 0}
DEFINITIONS = """
import os, time
from pathlib import Path
from sme2_assets.definitions import build_definitions
from sme2_assets.defs.resources import Nights
from sme2_assets.profiling import session

# A session that is to be killed in its third round waits there, until there is the file that lets all go on.
enough = session._enough
def held(arms, plan, rounds, spent_s):
    while rounds > 2 and os.environ.get("SME2_WORKER") == "one" and not Path({gate!r}).exists():
        time.sleep(0.1)
    return enough(arms, plan, rounds, spent_s)
session._enough = held

defs = build_definitions(
    when=Nights(cron={cron!r}, on=True, variants={variants!r}, devices=["label:rack"], settings={settings!r})
)
"""


@dataclass
class Deployment:
    """Where everything is, and the processes by their names."""

    folder: Path
    environment: dict[str, str]
    artifacts: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def store(self, name: str) -> Store:
        root = self.folder / name / "data"
        return Store(root) if root.is_dir() else make_data_folder(root, self.artifacts)

    def start(self, name: str, *words: str | Path, data: str | None = None) -> subprocess.Popen[bytes]:
        """A process with a Dagster home of its own, and the data folder of that name, or its own."""
        home = self.folder / name / "home"
        home.mkdir(parents=True, exist_ok=True)
        # Nobody has minutes here to find out that a worker is gone.
        settings = (CHECKOUT / "deploy" / "dagster.yaml").read_text()
        quicker = settings.replace("poll_interval_seconds: 60", "poll_interval_seconds: 5")
        assert quicker != settings
        (home / "dagster.yaml").write_text(quicker)
        own = {"DAGSTER_HOME": str(home), "SME2_DATA": str(self.store(data or name).root)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(word) for word in words],
                cwd=self.folder,
                env={**self.environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.running[name]

    def start_worker(self, name: str) -> None:
        self.start(name, sys.executable, "-m", "sme2_assets.cli", "worker", name)

    def kill(self, name: str) -> None:
        """As when the machine loses its power: all of its processes at once."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        time.sleep(1)
        for process in self.running.values():
            stop(process, signal.SIGKILL)

    def wait(self, what: str, answer: Callable[[], Any], patience_s: float) -> Any:
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            if found := answer():
                return found
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} ended: {self.told(name)}"
            time.sleep(0.5)
        raise AssertionError(f"{what} did not happen:\n" + "\n".join(map(self.told, self.running)))

    def told(self, name: str) -> str:
        return f"--- {name}\n" + (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]


@pytest.fixture
def deployment(
    tmp_path: Path,
    artifacts_dir: Path,
    server_packages: dict[str, Path],
    s3: dict[str, str],
    ssh_machine: SshMachine,
    second_machine: SshMachine,
    exported: Callable[[str], ExportedModel],
    bundle: RunnerBinary,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Deployment]:
    """Everything but the processes of Dagster and the workers."""
    for variant in VARIANTS:
        # What the workers would make one after the other; named by content, so they take what is there.
        exported(variant)
    inventory = tmp_path / "devices.yaml"
    inventory.write_text(
        "devices:\n"
        f"  first: {{ssh: '{ssh_machine.url}', labels: [rack], worker: one, has_sme2: false}}\n"
        f"  second: {{ssh: '{second_machine.url}', labels: [rack], worker: two, has_sme2: false}}\n"
    )
    with (
        postgres(server_packages["postgresql"], tmp_path) as database,
        redis(server_packages["redis-server"], tmp_path) as broker,
    ):
        shared = {
            "SME2_POSTGRES": database.replace("postgresql:", "postgresql+psycopg2:"),
            "SME2_BROKER": broker,
            "SME2_STORE": f"s3://{BUCKET}/deployment",
            "SME2_INVENTORY": str(inventory),
            "PYTHONPATH": f"{CHECKOUT}:{tmp_path}",
            **s3,
        }
        for name, value in shared.items():
            monkeypatch.setenv(name, value)
        deployment = Deployment(tmp_path, dict(os.environ), artifacts_dir)
        try:
            yield deployment
        finally:
            deployment.stop()


@pytest.mark.alone
def test_a_night_over_two_workers_has_every_session_once_although_a_worker_is_killed_twice(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
):
    began = time.monotonic()
    times: dict[str, float] = {}

    def passed(what: str) -> None:
        times[what] = round(time.monotonic() - began, 1)

    # The daemon has to be up by then: it makes up for no night of before.
    soon = datetime.now(UTC) + timedelta(minutes=3)
    gate = deployment.folder / "go-on"
    (deployment.folder / "lab_definitions.py").write_text(
        DEFINITIONS.format(
            cron=f"{soon.minute} {soon.hour} * * *", variants=VARIANTS, settings=SETTINGS, gate=str(gate)
        )
    )
    port, ui_port = free_port(), free_port()
    words = [PROGRAMS / "dagster", "code-server", "start", "-m", "lab_definitions", "-p", str(port)]
    deployment.start("code", *words, "-h", "127.0.0.1", data="lab")
    workspace = deployment.folder / "workspace.yaml"
    workspace.write_text(f"load_from: [{{grpc_server: {{host: 127.0.0.1, port: {port}}}}}]\n")
    deployment.wait("the code server", lambda: listens(port), 600)
    deployment.start("daemon", PROGRAMS / "dagster-daemon", "run", "-w", workspace)
    for name in ("lab", "one", "two"):
        deployment.start_worker(name)
    passed("all processes are started")
    instance = dg.DagsterInstance.from_config(str(deployment.folder / "daemon" / "home"))

    def runs_on(worker: str, *statuses: dg.DagsterRunStatus) -> list[dg.DagsterRun]:
        tags = {"dagster-celery/queue": worker}
        return list(instance.get_runs(dg.RunsFilter(tags=tags, statuses=list(statuses))))

    def measuring(worker: str, but: str | None = None) -> str | None:
        for run in runs_on(worker, dg.DagsterRunStatus.STARTED):
            records = instance.get_records_for_run(run.run_id).records
            if run.run_id != but and any("round 2" in it.event_log_entry.user_message for it in records):
                return run.run_id
        return None

    killed = deployment.wait("a measurement on worker one", lambda: measuring("one"), 1200)
    passed("a session on worker one is in its second round")
    deployment.kill("one")
    assert not [path for path in run_folders(deployment.store("one").runs) if killed in path.name]

    def is_failed() -> bool:
        return instance.get_run_by_id(killed).status == dg.DagsterRunStatus.FAILURE  # type: ignore[union-attr]

    deployment.wait("the end of the killed run", is_failed, 600)
    passed("Dagster knows that its worker is gone")
    deployment.start_worker("one")
    second = deployment.wait("another measurement on worker one", lambda: measuring("one", killed), 1200)
    deployment.kill("one")
    gate.touch()
    deployment.start_worker("one")
    passed("worker one is killed again, and started at once")
    lab = deployment.store("lab")
    [record] = deployment.wait("the end of the night", lambda: nights(lab), 1800)
    passed("the night is summed up")

    assert record["ok"], record
    assert sum(pair["attempts"] for pair in record["pairs"]) == 6, "four pairs, and two that were killed"
    reasons = [
        " ".join(it.event_log_entry.message for it in instance.get_records_for_run(run).records)
        for run in (killed, second)
    ]
    assert "does not answer" in reasons[0]
    assert "does not know the run" in reasons[1] or "does not answer" in reasons[1]

    runs = Warehouse(lab.warehouse).query(
        "SELECT run_id, session_id, variant, device, sequence FROM runs ORDER BY run_id"
    )
    measured = {
        path.name: worker for worker in ("one", "two") for path in run_folders(deployment.store(worker).runs)
    }
    assert runs["run_id"].tolist() == sorted(measured), "what was measured, each once"
    assert Counter(measured.values()) == {"one": 2, "two": 2}
    assert Counter(zip(runs["variant"], runs["device"], strict=True)).most_common(1)[0][1] == 1
    assert runs["device"].nunique() == 2
    for worker in ("one", "two"):
        own = runs[[measured[run] == worker for run in runs["run_id"]]]
        assert own["device"].nunique() == 1, "a device has one owner"
    for table in ("timeline", "inferences"):
        counted = Warehouse(lab.warehouse).query(f"SELECT DISTINCT run_id FROM {table} ORDER BY run_id")
        assert counted["run_id"].tolist() == sorted(measured)

    url = deployment.environment["SME2_STORE"]
    fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    assert len(fs.ls(f"{root}/sessions")) == 4
    name = json.loads(fs.cat_file(f"{root}/{CURRENT}"))["files"][0]
    fs.get_file(f"{root}/{name}", str(deployment.folder / "mine.duckdb"))
    shutil.rmtree(lab.warehouse)
    with duckdb.connect(str(deployment.folder / "mine.duckdb"), read_only=True) as connection:
        connection.register_filesystem(fs)
        found = connection.execute("SELECT DISTINCT run_id FROM timeline ORDER BY run_id").fetchall()
    assert [run for (run,) in found] == sorted(measured), "people see the same in the store"

    words = [sys.executable, "-m", "sme2_assets.ui.webserver", "-h", "127.0.0.1", "-p", str(ui_port)]
    deployment.start("webserver", *words, "-w", workspace)
    deployment.wait("the webserver", lambda: listens(ui_port), 600)
    question = json.dumps({"query": "{ runsOrError { ... on Runs { results { status } } } }"}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{ui_port}/graphql", question, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        statuses = [it["status"] for it in json.load(answer)["data"]["runsOrError"]["results"]]
    assert Counter(statuses)["FAILURE"] == 2
    with psycopg2.connect(deployment.environment["SME2_POSTGRES"].replace("+psycopg2", "")) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT count(*), pg_total_relation_size('event_logs') FROM event_logs")
        events, size = cursor.fetchall()[0]
    times[f"(no time) events of {len(statuses)} runs: {events}, {size} bytes in PostgreSQL"] = 0.0
    with capsys.disabled():
        print("".join(f"\n{at:7.1f} s  {what}" for what, at in times.items()))
