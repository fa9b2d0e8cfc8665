"""What a click in the UI does: a real `dagster dev`, asked through its GraphQL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.launch import PAIR_ASSETS, RUN_ASSETS
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.targets.qemu import Qemu
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.e2e.conftest import make_data_folder

PATIENCE_S = 300
LAUNCH = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
    ... on PartitionKeysNotFoundError { message }
  }
}
"""
STATUS = """
query ($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status runs(limit: 20) { id status } }
  }
}
"""
NODE = """
query ($asset: String!) {
  assetNodeOrError(assetKey: {path: [$asset]}) { ... on AssetNode { partitionKeys jobNames } }
}
"""
RUN = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
RUN_STATUS = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


class Ui:
    """A running `dagster dev`."""

    def __init__(self, port: int, store: Store) -> None:
        self.url = f"http://127.0.0.1:{port}/graphql"
        self.store = store

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def node(self, asset: str) -> dict[str, Any]:
        return self.ask(NODE, asset=asset)["assetNodeOrError"]

    def materialise(self, assets: list[str], key: str) -> str:
        """Materialises one partition, and gives the status it ended with."""
        return self.ended(self.launch(assets, key))

    def launch(self, assets: list[str], key: str) -> str:
        """Launches what "Materialize" launches for one partition, and gives the run's id."""
        job = next(name for name in self.node(assets[0])["jobNames"] if name.startswith("__ASSET_JOB"))
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "sme2_assets",
            "pipelineName": job,
            "assetSelection": [{"path": [asset]} for asset in assets],
        }
        tags = [{"key": "dagster/partition", "value": key}]
        params = {"selector": selector, "mode": "default", "executionMetadata": {"tags": tags}}
        launched = self.ask(RUN, params=params)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def ended(self, run_id: str) -> str:
        """The status the run ended with."""

        def status() -> str | None:
            found = self.ask(RUN_STATUS, id=run_id)["runOrError"]["status"]
            return found if found in ("SUCCESS", "FAILURE", "CANCELED") else None

        return wait_for(status)

    def backfill(self, assets: list[str], keys: list[str]) -> list[dict[str, str]]:
        """Launches what "Materialize" launches for several partitions, waits, and gives the runs."""
        params = {"assetSelection": [{"path": [asset]} for asset in assets], "partitionNames": keys}
        launched = self.ask(LAUNCH, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched

        def finished() -> list[dict[str, str]] | None:
            state = self.ask(STATUS, id=launched["backfillId"])["partitionBackfillOrError"]
            return None if state["status"] == "REQUESTED" else state["runs"]

        return wait_for(finished)


def wait_for(answer: Callable[[], Any]) -> Any:
    """The first answer that is something, within the patience of this test."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if found := answer():
                return found
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.5)
    raise AssertionError("nothing happened")


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path) -> Iterator[Ui]:
    store = make_data_folder(tmp_path_factory.mktemp("ui") / "data", artifacts_dir)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = store.root / "dagster.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["make", "-o", f"{sys.prefix}/.ready", "dev", f"VENV={sys.prefix}", f"PORT={port}"],
            cwd=CHECKOUT,
            env={**os.environ, "SME2_DATA": str(store.root), "DAGSTER_HOME": str(store.dagster_home)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        running = Ui(port, store)
        wait_for(lambda: running.ask("{ version }"))
        yield running
    finally:
        # Not SIGINT: whatever a shell started in the background ignores it, and so do its children.
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_clicking_from_model_to_report(ui: Ui, emulator: Qemu):
    """Models appear by themselves; a pair is one run with two partitions; every stage succeeds."""
    variant = "toy_cnn-fp32"
    wait_for(lambda: variant in ui.node("exported_model")["partitionKeys"])
    targets = ["emulated-sme2_off", "emulated-sme2_on"]
    launched = [ui.launch(["runner_binary"], target) for target in targets]
    launched.append(ui.launch(["exported_model"], variant))
    assert [ui.ended(run_id) for run_id in launched] == 3 * ["SUCCESS"]
    runs = ui.backfill(list(RUN_ASSETS), [f"{variant}|{target}" for target in targets])
    assert [run["status"] for run in runs] == ["SUCCESS"]
    assert ui.materialise(list(PAIR_ASSETS), f"{variant}|emulated") == "SUCCESS"
    model = Warehouse(ui.store.warehouse).query("SELECT * FROM sme2_comparison WHERE level = 'model'").iloc[0]
    assert model["variant"] == variant
    assert model["sme2_operators_on"] > 0
    assert model["sme2_operators_off"] == 0
    assert (ui.store.report_dir(variant, "emulated") / "report.md").is_file()
