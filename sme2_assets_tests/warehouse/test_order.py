"""What is newest is what was measured last, whatever the clocks said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.cli import main
from sme2_assets.definitions import build_definitions
from sme2_assets.defs.nights import Nights
from sme2_assets.defs.resources import Lab
from sme2_assets.evidence.documents import LARGEST_SEQUENCE
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest
from sme2_assets.evidence.sequence import count_from, next_number
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse, history
from sme2_assets.warehouse.comparisons import compare_session, device_noise_floor
from sme2_assets.warehouse.read import latest_sessions, run_of_id
from sme2_assets.warehouse.rebuild import merge, rebuild, sync
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.test_rebuild import quiet, write_pair

FAST = MadeRun(rounds=2, iterations=2, sequence=2)
# A session of a machine whose clock is a year ahead, and the one after the clock was put right.
AHEAD = replace(
    FAST,
    session_id="20270101T000000-ffffff",
    sequence=1,
    started_at=FAST.started_at + timedelta(days=365),
    matrix_speedup=4.0,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("measured") / "data")
    for run in (AHEAD, FAST):
        write_pair(store, run)
        sync(store, quiet)
    return store.root


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(measured, tmp_path / "data", symlinks=True)))


def told(store: Store, *words: str) -> str:
    done = CliRunner().invoke(main, ["--data", str(store.root), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_speak_of_the_session_after_one_whose_clock_was_a_year_ahead(store: Store):
    answer = told(store, "explain", "toy_cnn-fp32", "--platform", "linux", "--json")
    assert FAST.run_id in answer or FAST.session_id in answer
    assert AHEAD.session_id not in answer
    rows = json.loads(told(store, "history", "toy_cnn-fp32", "--json"))
    assert [row["run_id"] for row in rows if row["sme2"] == "on"] == [
        replace(run, sme2="on").run_id for run in (AHEAD, FAST)
    ]
    told(store, "report", "toy_cnn-fp32", "--platform", "linux")
    [page] = store.reports.rglob("report.md")
    assert FAST.session_id in page.read_text()
    assert AHEAD.session_id not in page.read_text()
    exported = told(store, "export", "latest", "--format", "csv", "--json")
    assert FAST.session_id in exported


@pytest.mark.thorough
def test_a_rebuild_gives_the_same_order_again(store: Store):
    before = _order(store)
    rebuild(store, quiet)
    assert _order(store) == before == [AHEAD.session_id, FAST.session_id]


def test_the_newest_of_every_view_is_the_one_that_was_measured_last(store: Store):
    warehouse = Warehouse(store.warehouse)
    [newest] = latest_sessions(warehouse)
    assert newest["session_id"] == FAST.session_id
    shown = warehouse.query("SELECT DISTINCT session_id FROM sme2_comparison")["session_id"].tolist()
    assert shown == [FAST.session_id]
    for rows in history.series_of(warehouse).values():
        assert rows["sequence"].tolist() == [1, 2]


def test_a_slow_down_is_dated_by_the_order_and_not_by_the_clock(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    runs = [
        replace(
            FAST,
            session_id=f"202601{number:02d}T000000-aaaaaa",
            sequence=number,
            # The clock of every second night is a year ahead.
            started_at=FAST.started_at + timedelta(days=number + 365 * (number % 2)),
            seed=number,
            slowness=1.5 if number > 7 else 1.0,
        )
        for number in range(1, 15)
    ]
    ingest(warehouse, *(run.write(tmp_path / "runs") for run in runs))
    warehouse.publish()
    found = history.find_regressions(warehouse, tmp_path / "none")
    assert {run_of_id(warehouse, run_id)["sequence"] for run_id in found["run_id"]} == {8}


def test_verdicts_are_judged_by_the_noise_that_was_measured_before(store: Store):
    warehouse = Warehouse(store.warehouse)
    template = warehouse.query("FROM comparisons WHERE level = 'model' LIMIT 1")
    for number in range(1, 13):
        run = replace(
            AHEAD, variant=f"aa{number}-fp32", session_id=f"aa{number:02d}", sequence=number, paired=False
        )
        ingest(warehouse, run.write(store.runs))
        keys = {"variant": run.variant, "platform": "linux", "session_id": run.session_id}
        rows = template.assign(factor=None, speedup=1.05, b_run_id=run.run_id, a_run_id=run.run_id)
        warehouse.write(COMPARISONS, rows.drop(columns=list(keys)), keys)
    warehouse.publish()
    last = run_of_id(warehouse, FAST.run_id)
    assert device_noise_floor(warehouse, {**last, "sequence": 99}, until_then=True) == pytest.approx(1.05)
    assert device_noise_floor(warehouse, {**last, "sequence": 2}, until_then=True) is None
    assert device_noise_floor(warehouse, {**last, "sequence": float("nan")}, until_then=True) is None


def test_after_a_merge_every_new_session_is_newer_than_both_labs(store: Store, tmp_path: Path):
    theirs = Store(tmp_path / "theirs")
    elsewhere = replace(FAST, session_id="20250101T000000-dddddd", sequence=41, device="b-cpu-0a1b2c")
    write_pair(theirs, elsewhere)
    merge(store, theirs.root, quiet)
    assert next_number(store.runs) == 42
    assert _order(store) == [AHEAD.session_id, FAST.session_id, elsewhere.session_id]
    merge(theirs, store.root, quiet)
    assert _order(theirs) == _order(store), "both labs agree"


@pytest.mark.thorough
def test_runs_from_before_there_were_numbers_are_the_oldest(store: Store):
    old = replace(FAST, session_id="20280101T000000-eeeeee", started_at=FAST.started_at + timedelta(days=800))
    for sme2 in ("off", "on"):
        path = replace(old, sme2=sme2).write(store.runs) / MANIFEST_FILE
        fields = json.loads(path.read_text())
        del fields["sequence"], fields["factor"]
        fields["paired"] = fields.pop("arms") == 2
        path.write_text(json.dumps({**fields, "schema": 4}))
        assert Manifest.read(path).sequence == 0
    sync(store, quiet)
    assert _order(store) == [old.session_id, AHEAD.session_id, FAST.session_id]
    assert latest_sessions(Warehouse(store.warehouse))[0]["session_id"] == FAST.session_id


def test_a_number_is_given_once_and_survives_the_loss_of_the_counter(tmp_path: Path):
    with ThreadPoolExecutor(8) as many:
        numbers = list(many.map(lambda _: next_number(tmp_path / "runs"), range(40)))
    assert sorted(numbers) == list(range(1, 41))
    replace(FAST, sequence=77).write(tmp_path / "runs")
    (tmp_path / "sequence").unlink()
    assert next_number(tmp_path / "runs") == 78


@pytest.mark.parametrize("largest", [LARGEST_SEQUENCE, LARGEST_SEQUENCE - 1])
def test_however_large_a_merged_number_is_what_is_measured_next_can_be_kept(
    store: Store, tmp_path: Path, largest: int
):
    theirs = Store(tmp_path / "theirs")
    write_pair(theirs, replace(FAST, session_id="20250101T000000-dddddd", sequence=largest))
    assert merge(store, theirs.root, quiet).refused == []
    for _ in range(3):
        replace(FAST, session_id="20260301T000000-eeeeee", sequence=next_number(store.runs))._manifest(
            tmp_path, []
        ).write(tmp_path)
        assert Manifest.read(tmp_path / MANIFEST_FILE).sequence == LARGEST_SEQUENCE


def test_a_counter_that_a_number_beyond_all_reason_had_moved_is_found_anew(store: Store):
    (store.root / "sequence").write_text("4611686018427387903\n")
    assert next_number(store.runs) == 3


@settings(deadline=None, max_examples=30)
@given(merged=st.lists(st.one_of(st.none(), st.integers(0, 60)), max_size=8))
def test_whatever_is_merged_numbers_only_grow(
    tmp_path_factory: pytest.TempPathFactory, merged: list[int | None]
):
    runs = tmp_path_factory.mktemp("numbers") / "runs"
    given_so_far = 0
    for theirs in merged:
        if theirs is not None:
            count_from(runs, theirs)
            given_so_far = max(given_so_far, theirs)
        number = next_number(runs)
        assert number > given_so_far
        given_so_far = number


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        made.add_dynamic_partitions("model_variants", [FAST.variant])
        yield made


@pytest.mark.parametrize("asked", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_two_devices_that_measure_a_model_at_once_never_share_a_comparison(
    tmp_path: Path, instance: dg.DagsterInstance, asked: bool
):
    """Their arms become partitions in any order; what is compared is one session, the one asked for."""
    store = Store(tmp_path / "data")
    one = replace(FAST, sequence=5)
    other = replace(FAST, session_id="20260101T000001-bbbbbb", device="b-cpu-0a1b2c", sequence=6)
    for run in (one, other):
        write_pair(store, run)
    sync(store, quiet)
    for run, sme2 in ((one, "off"), (other, "off"), (other, "on"), (one, "on")):
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                "timeline",
                partition=f"{FAST.variant}|linux-sme2_{sme2}",
                metadata={"run_id": replace(run, sme2=sme2).run_id},
            )
        )
    lab = Lab(data_root=str(store.root))
    done = dg.materialize(
        list(build_definitions(lab).assets or []),  # type: ignore[arg-type]
        selection=["sme2_comparison"],
        partition_key=f"{FAST.variant}|linux",
        instance=instance,
        resources={"lab": lab, "nights": Nights()},
        run_config={"ops": {"sme2_comparison": {"config": {"session": one.session_id if asked else ""}}}},
    )
    [made] = done.asset_materializations_for_node("sme2_comparison")
    assert made.metadata["session_id"].value == (one if asked else other).session_id


def _order(store: Store) -> list[str]:
    rows = Warehouse(store.warehouse).query(
        "SELECT session_id FROM runs GROUP BY session_id ORDER BY any_value(sequence), any_value(started_at)"
    )
    return rows["session_id"].tolist()


@pytest.mark.thorough
def test_compared_again_a_session_is_judged_the_same(store: Store):
    warehouse = Warehouse(store.warehouse)
    before = warehouse.query("FROM comparisons WHERE session_id = ? ORDER BY ALL", [AHEAD.session_id])
    compare_session(warehouse, AHEAD.session_id)
    warehouse.publish()
    after = warehouse.query("FROM comparisons WHERE session_id = ? ORDER BY ALL", [AHEAD.session_id])
    pd.testing.assert_frame_equal(before, after)
