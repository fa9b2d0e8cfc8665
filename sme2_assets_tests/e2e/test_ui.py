"""The UI as people use it: a real `sme2 dev`, clicked in a real browser, and asked through its GraphQL."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from sme2_assets.store import CHECKOUT, Store
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.browser import PATIENCE_MS
from sme2_assets_tests.e2e.conftest import Workbench, make_data_folder
from sme2_assets_tests.servers import free_port

PATIENCE_S = 1200
NODE = """
query ($asset: String!) {
  assetNodeOrError(assetKey: {path: [$asset]}) { ... on AssetNode { partitionKeys } }
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
RUNS_OF_CHECKS = "{ runsOrError { ... on Runs { results { id assetCheckSelection { name } } } } }"
SCHEDULE = """
{ scheduleOrError(scheduleSelector: {
    repositoryName: "__repository__", repositoryLocationName: "sme2_assets", scheduleName: "nightly_schedule"
  }) { ... on Schedule { scheduleState { status } } } }
"""
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
VARIANT, MEASURED = "toy_cnn-fp32", "toy_cnn-int8"


class Ui:
    """A running `sme2 dev`."""

    def __init__(self, port: int, store: Store) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/graphql"
        self.store = store

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["data"]

    def node(self, asset: str) -> dict[str, Any]:
        return self.ask(NODE, asset=asset)["assetNodeOrError"]

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
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError("nothing happened")


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path, emulator: Qemu) -> Iterator[Ui]:
    """The UI over an empty data folder."""
    store = make_data_folder(tmp_path_factory.mktemp("ui") / "data", artifacts_dir)
    port = free_port()
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
def measured_elsewhere(ui: Ui) -> None:
    """A pair that another process measured, as the command line does."""
    with dg.DagsterInstance.from_config(str(ui.store.dagster_home)) as instance:
        Workbench(ui.store, instance).profile(MEASURED, "emulated", "off", "on")


@pytest.fixture(scope="module")
def page(browser: Browser, ui: Ui) -> Page:
    opened = browser.new_page(viewport={"width": 1600, "height": 1300}, base_url=ui.root)
    # The machine may be busy with the runs that the clicks started.
    opened.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    return opened


def open_partition(page: Page, asset: str, partition: str) -> None:
    page.goto(f"/assets/{asset}?view=partitions&partition={quote(partition)}")
    # What is materialised is what is shown, so it has to be shown first.
    page.get_by_text(partition, exact=True).last.wait_for(state="attached")


def click_materialise(page: Page, asset: str, partition: str) -> None:
    """Materialises the partition that the page shows, by clicking."""
    open_partition(page, asset, partition)
    page.get_by_role("button", name="Materialize").first.click()
    launch = page.get_by_role("button", name="Launch 1 run")
    launch.click()
    launch.wait_for(state="hidden")


def newest_run(ui: Ui, partition: str) -> str:
    """The id of the run that a click started, when it has ended."""

    def ended() -> str | None:
        runs = ui.ask(NEWEST_RUN, partition=partition)["runsOrError"]["results"]
        return runs[0]["id"] if runs and runs[0]["status"] in ENDED else None

    return wait_for(ended)


def run_of_check(ui: Ui, check: str) -> str | None:
    """The id of a run of this check alone."""
    runs = ui.ask(RUNS_OF_CHECKS)["runsOrError"]["results"]
    return next((it["id"] for it in runs if it["assetCheckSelection"] == [{"name": check}]), None)


def test_the_graph_shows_every_stage(ui: Ui, page: Page):
    page.goto("/asset-groups/")
    for group in ("build", "measure", "noise", "results"):
        expect(page.get_by_text(group, exact=True).first).to_be_visible()


@pytest.mark.thorough
def test_the_nightly_schedule_can_be_switched_on(ui: Ui, page: Page):
    page.goto("/locations/sme2_assets/schedules/nightly_schedule")
    switch = page.locator("input[type=checkbox]").first
    for state in ("RUNNING", "STOPPED"):
        # A click is lost while Dagster waits for the answer to the last one.
        expect(switch).to_be_enabled()
        switch.dispatch_event("click")
        wait_for(lambda state=state: ui.ask(SCHEDULE)["scheduleOrError"]["scheduleState"]["status"] == state)


@pytest.mark.thorough
def test_a_failing_platform_shows_its_remedy(ui: Ui, page: Page):
    """This machine is no Mac, or no Linux: the run says what to do, before anything else."""
    other = "linux" if platform.system() == "Darwin" else "mac"
    partition = f"{VARIANT}|{other}-sme2_off"
    click_materialise(page, "runner_binary", partition)
    run_id = newest_run(ui, partition)
    assert ui.ended(run_id) == "FAILURE"
    page.goto(f"/runs/{run_id}")
    expect(page.get_by_text("what to do", exact=True).first).to_be_visible()
    expect(page.get_by_text("Failure: What to do: Run sme2_assets on a").first).to_be_visible()
    expect(page.get_by_text(re.compile("Available here: .*emulated-sme2_on")).first).to_be_visible()


@pytest.mark.thorough
@pytest.mark.usefixtures("measured_elsewhere")
def test_the_front_page_shows_what_the_command_line_has_measured(ui: Ui, page: Page):
    """Dagster's timeline leaves out runs in another process, so it is not the front page."""
    page.goto("/")
    expect(page.get_by_text(f"measures: {MEASURED} on emulated").first).to_be_visible()
    expect(page.get_by_text("compare", exact=True).first).to_be_visible()


@pytest.mark.thorough
@pytest.mark.usefixtures("measured_elsewhere")
def test_the_list_of_checks_says_what_the_page_of_a_check_says(ui: Ui, page: Page):
    """Of a pair that was measured by one run; also when a check is then executed by itself."""
    page.goto("/assets/timeline?view=checks&checkDetail=operators_attributed")
    checked = page.get_by_text(f"{MEASURED}|emulated-sme2_off, {MEASURED}|emulated-sme2_on")
    for again in (False, True):
        if again:
            page.get_by_text("Execute", exact=True).click()
            assert ui.ended(wait_for(lambda: run_of_check(ui, "operators_attributed"))) == "SUCCESS"
            page.reload()
        expect(checked).to_be_visible()
        expect(page.get_by_text("Passed", exact=True)).to_be_visible()
        expect(page.get_by_text("Succeeded", exact=True)).to_have_count(6)


@pytest.mark.thorough
def test_a_guide_says_what_is_what_and_what_can_be_measured_here(ui: Ui, page: Page):
    page.goto("/assets/etdump_traces?view=overview")
    page.get_by_role("link", name="The UI in five clicks").first.click()
    expect(page.get_by_role("heading", name="What is what")).to_be_visible()
    expect(page.get_by_role("row", name="emulated-sme2_on yes")).to_be_visible()
    page.get_by_role("link", name="Runs", exact=True).click()
    page.wait_for_url("**/runs")


def choose(page: Page, text: str) -> None:
    """All partitions of the next dimension whose key has a word: one click, then the keyboard."""
    page.get_by_text("Select a partition or create one").first.click()
    page.get_by_placeholder("Filter partitions").press_sequentially(text)
    page.get_by_text("Select all (").wait_for()
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "checkbox":
            break
    page.keyboard.press("Space")
    page.keyboard.press("Escape")


def search_for(page: Page, word: str) -> None:
    """Types until it is found: Dagster never looks up again what came before it had loaded the names."""
    box = page.locator("[data-search-input]")

    def found() -> bool:
        if not box.is_visible():
            page.keyboard.press("/")
        box.fill("")
        box.press_sequentially(word)
        with contextlib.suppress(PlaywrightTimeout):
            page.locator(f"a[href*='{word}']").first.wait_for(timeout=10_000)
            return True
        return False

    wait_for(found)


def test_five_clicks_from_the_front_page_to_a_report(ui: Ui, page: Page):
    """Search for the group, materialise it for a model and both states: everything else follows by itself."""
    wait_for(lambda: VARIANT in ui.node("advice")["partitionKeys"])
    # The front page, but for a folder in which nothing was measured.
    page.goto("/runs")
    # Of the mouse: a click that a key makes has no detail.
    page.evaluate(
        "addEventListener('click', it => {window.clicks = (window.clicks || 0) + (it.detail && 1)}, true)"
    )
    page.get_by_text("Search", exact=True).wait_for()
    search_for(page, "measure")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("asset-groups.*measure"))
    page.get_by_role("button", name="Materialize all").click()
    for word in (VARIANT, "emulated"):
        choose(page, word)
    launch = page.get_by_role("button", name="Launch backfill")
    launch.click()
    launch.wait_for(state="hidden")
    assert page.evaluate("window.clicks") <= 5

    pages = ui.store.reports / VARIANT / "emulated"
    wait_for(lambda: list(pages.glob("*/report.md")))
    wait_for(lambda: VARIANT in (ui.store.reports / "index.html").read_text())
    model = Warehouse(ui.store.warehouse).query(
        "SELECT * FROM sme2_comparison WHERE level = 'model' AND variant = ?", [VARIANT]
    )
    assert model["sme2_operators_on"].item() > 0
    assert model["sme2_operators_off"].item() == 0

    open_partition(page, "sme2_comparison", f"{VARIANT}|emulated")
    expect(page.get_by_text("kernel evidence").first).to_be_visible()
    assert drawn(page, "instructions, ").startswith("data:image/svg+xml"), "seen without a click"
    page.get_by_text("[Show Markdown]").first.click()
    assert drawn(page, "category shift").startswith("data:image/svg+xml")

    # The report opens from its asset, and so does the document about it.
    page.goto("/assets/report?view=overview")
    with page.context.expect_page() as opened:
        page.locator("a[href^='/sme2/reports/']").first.click()
    expect(opened.value.get_by_role("heading", name=VARIANT).first).to_be_visible()
    opened.value.close()
    page.locator("a[href^='/sme2/docs/']").first.click()
    expect(page.get_by_role("heading", name="What a page says")).to_be_visible()


def drawn(page: Page, alt: str) -> str:
    """The address of a picture that the browser has decoded."""
    picture = page.locator(f"img[alt^='{alt}']").first
    picture.wait_for()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    return picture.get_attribute("src") or ""
