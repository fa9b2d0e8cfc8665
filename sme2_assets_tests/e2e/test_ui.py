"""The UI as people use it: a real `dagster dev`, clicked in a real browser, and asked through its GraphQL."""

from __future__ import annotations

import contextlib
import json
import os
import platform
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
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from sme2_assets.launch import PAIR_ASSETS, RUN_ASSETS
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.targets.qemu import Qemu
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.e2e.conftest import make_data_folder

PATIENCE_S = 300
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
NEWEST_RUN = """
query ($partition: String!) {
  runsOrError(filter: {tags: [{key: "dagster/partition", value: $partition}]}, limit: 1) {
    ... on Runs { results { id status } }
  }
}
"""
BACKFILLS = """
{ partitionBackfillsOrError(limit: 1) {
    ... on PartitionBackfills { results { id status runs(limit: 20) { id status } } }
} }
"""
SCHEDULE = """
{ scheduleOrError(scheduleSelector: {
    repositoryName: "__repository__", repositoryLocationName: "sme2_assets", scheduleName: "nightly_schedule"
  }) { ... on Schedule { scheduleState { status } } } }
"""
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
VARIANT = "toy_cnn-fp32"


class Ui:
    """A running `dagster dev`."""

    def __init__(self, port: int, store: Store) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/graphql"
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

    def launch(self, assets: list[str], key: str, last: str | None = None) -> str:
        """Launches what "Materialize" launches for a partition, or for a range; gives the run's id."""
        job = next(name for name in self.node(assets[0])["jobNames"] if name.startswith("__ASSET_JOB"))
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": "sme2_assets",
            "pipelineName": job,
            "assetSelection": [{"path": [asset]} for asset in assets],
        }
        names = ("asset_partition_range_start", "asset_partition_range_end") if last else ("partition",)
        values = zip(names, (key, last), strict=False)
        tags = [{"key": f"dagster/{name}", "value": value} for name, value in values]
        params = {"selector": selector, "mode": "default", "executionMetadata": {"tags": tags}}
        launched = self.ask(RUN, params=params)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def ended(self, run_id: str) -> str:
        """The status the run ended with."""

        def status() -> str | None:
            found = self.ask(RUN_STATUS, id=run_id)["runOrError"]["status"]
            return found if found in ENDED else None

        return wait_for(status)


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


@pytest.fixture(scope="module")
def page(browser: Browser, ui: Ui) -> Page:
    opened = browser.new_page(viewport={"width": 1600, "height": 1300}, base_url=ui.root)
    # The machine may be busy with the runs that the clicks started.
    opened.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    return opened


def open_partition(page: Page, asset: str, partition: str) -> None:
    page.goto(f"/assets/{asset}?view=partitions&partition={quote(partition)}")
    # What is materialised is what is shown, so it has to be shown first.
    page.get_by_text(partition, exact=True).last.wait_for(state="attached")


def click_materialise(page: Page, asset: str, partition: str, *also: str) -> None:
    """Materialises the partition that the page shows, and other keys of its last dimension, by clicking."""
    open_partition(page, asset, partition)
    page.get_by_role("button", name="Materialize").first.click()
    launch = page.get_by_role("button", name="Launch 1 run")
    launch.wait_for()
    if also:
        page.get_by_role("img", name="expand_more").last.click()
        for key in also:
            page.get_by_role("menuitem", name=key).click()
        page.get_by_role("img", name="expand_less").last.click()
        launch = page.get_by_role("button", name="Launch backfill").or_(launch)
    launch.click()
    launch.wait_for(state="hidden")


def newest_run(ui: Ui, partition: str) -> str:
    """The id of the run that a click started, when it has ended."""

    def ended() -> str | None:
        runs = ui.ask(NEWEST_RUN, partition=partition)["runsOrError"]["results"]
        return runs[0]["id"] if runs and runs[0]["status"] in ENDED else None

    return wait_for(ended)


@pytest.mark.slow
def test_the_graph_shows_every_stage(ui: Ui, page: Page):
    page.goto("/asset-groups/")
    for group in ("build", "measure", "warehouse", "results"):
        expect(page.get_by_text(group, exact=True).first).to_be_visible()


@pytest.mark.slow
def test_the_nightly_schedule_can_be_switched_on(ui: Ui, page: Page):
    page.goto("/locations/sme2_assets/schedules/nightly_schedule")
    switch = page.locator("input[type=checkbox]").first
    for state in ("RUNNING", "STOPPED"):
        switch.dispatch_event("click")
        wait_for(lambda state=state: ui.ask(SCHEDULE)["scheduleOrError"]["scheduleState"]["status"] == state)


@pytest.mark.slow
def test_a_failing_platform_shows_its_remedy(ui: Ui, page: Page):
    """This machine is no Mac, or no Linux: the run says what to do, before anything else."""
    other = "linux" if platform.system() == "Darwin" else "mac"
    partition = f"{other}-sme2_off"
    click_materialise(page, "runner_binary", partition)
    run_id = newest_run(ui, partition)
    assert ui.ended(run_id) == "FAILURE"
    page.goto(f"/runs/{run_id}")
    expect(page.get_by_text("what to do", exact=True).first).to_be_visible()
    expect(page.get_by_text("Failure: What to do: Run sme2_assets on a").first).to_be_visible()


@pytest.mark.slow
def test_clicking_from_model_to_report(ui: Ui, page: Page, emulator: Qemu):
    """Models appear by themselves; a pair is one run with two partitions; every stage succeeds."""
    wait_for(lambda: VARIANT in ui.node("exported_model")["partitionKeys"])
    targets = ["emulated-sme2_off", "emulated-sme2_on"]
    binaries = ui.launch(["runner_binary"], targets[0]), ui.launch(["runner_binary"], targets[1])
    click_materialise(page, "exported_model", VARIANT)
    assert [ui.ended(run_id) for run_id in (*binaries, newest_run(ui, VARIANT))] == 3 * ["SUCCESS"]

    click_materialise(page, "etdump_traces", f"{VARIANT}|{targets[1]}", targets[0])
    [measured] = wait_for(lambda: ended_backfill(ui))
    assert measured["status"] == "SUCCESS"
    after = [asset for asset in RUN_ASSETS if asset != "etdump_traces"]
    assert ui.ended(ui.launch(after, *(f"{VARIANT}|{target}" for target in targets))) == "SUCCESS"
    assert ui.materialise(list(PAIR_ASSETS), f"{VARIANT}|emulated") == "SUCCESS"
    model = Warehouse(ui.store.warehouse).query("SELECT * FROM sme2_comparison WHERE level = 'model'").iloc[0]
    assert model["variant"] == VARIANT
    assert model["sme2_operators_on"] > 0
    assert model["sme2_operators_off"] == 0
    assert list((ui.store.reports / VARIANT / "emulated").glob("*/report.md"))

    open_partition(page, "sme2_comparison", f"{VARIANT}|emulated")
    expect(page.get_by_text("not comparable").first).to_be_visible()
    assert drawn(page, "operators by category").startswith("data:image/svg+xml"), "seen without a click"
    page.get_by_text("[Show Markdown]").first.click()
    assert drawn(page, "category shift").startswith("data:image/png")


def ended_backfill(ui: Ui) -> list[dict[str, Any]] | None:
    """The runs of the newest backfill, when it has ended."""
    newest = ui.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]
    return newest[0]["runs"] if newest and newest[0]["status"] not in ("REQUESTED", "CANCELING") else None


def drawn(page: Page, alt: str) -> str:
    """The address of a picture that the browser has decoded."""
    picture = page.locator(f"img[alt^='{alt}']").first
    picture.wait_for()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    return picture.get_attribute("src") or ""
