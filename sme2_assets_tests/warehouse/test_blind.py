"""Blind trials: the verdict knows the times alone, and the truth is joined after it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.analysis.claims import heard
from sme2_assets.evidence.blind import TRIAL_FILE, TRUTH_FILE, Trial, Truth, write_trial
from sme2_assets.report.content import session_document
from sme2_assets.report.document import Document, Grid
from sme2_assets.report.markdown import markdown_of
from sme2_assets.store import Store, sha256_of_text
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.blind import blind_rates_text, write_blind_trials
from sme2_assets.warehouse.rebuild import differences, merge, rebuild, sync
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.made.run_folder import MadeRun

MADE = MadeRun(rounds=6, iterations=2)


def quiet(message: str) -> None:
    """Progress that nobody watches."""


def trial(
    number: int, dose: float, *, told: float | None = None, device: str = MADE.device
) -> tuple[Trial, Truth]:
    """A session whose second arm was slower by `dose` percent, of which the truth is `told`."""
    random = np.random.default_rng(number)
    a, b = np.exp(random.normal(0, 0.005, (2, 10)))
    truth = Truth(dose_percent=dose if told is None else told, salt=f"{number:032x}")
    return Trial(
        session_id=f"202601{number + 1:02d}T000000-abcdef",
        sequence=0,
        variant=MADE.variant,
        platform=MADE.platform,
        sme2="off",
        device=device,
        arch=MADE.arch,
        fidelity="hardware",
        threads=MADE.threads,
        cpus="",
        power_mode="",
        started_at="2026-01-01T00:00:00+00:00",
        seconds=3.0,
        inference_seconds=1.0,
        a_ns=(1e6 * a).tolist(),
        b_ns=(1e6 * b * (1 + dose / 100)).tolist(),
        truth_sha256=sha256_of_text(truth.to_json()),
    ), truth


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def rows_of(store: Store):
    warehouse = Warehouse(store.warehouse)
    assert write_blind_trials(store, warehouse) == {}
    warehouse.publish()
    return warehouse.query("SELECT * FROM blind_trials ORDER BY session_id")


def write_trials(store: Store, count: int = 4, device: str = MADE.device) -> None:
    """Every other one a placebo."""
    for number in range(count):
        write_trial(store.blind, *trial(number, 5.0 if number % 2 else 0.0, device=device))


def test_whatever_the_truth_the_verdict_is_the_same(store: Store, tmp_path: Path):
    lied = Store(tmp_path / "lied")
    for number, dose in enumerate((0.0, 2.0, 5.0, 10.0)):
        write_trial(store.blind, *trial(number, dose))
        write_trial(lied.blind, *trial(number, dose, told=10.0 - dose))
    told, other = rows_of(store), rows_of(lied)
    assert told["dose_percent"].tolist() == [0, 2, 5, 10]
    assert other["dose_percent"].tolist() == [10, 8, 5, 0]
    assert told.drop(columns="dose_percent").equals(other.drop(columns="dose_percent"))


def test_a_trial_tells_nothing_of_its_truth():
    fields = set(Trial.model_fields)
    assert fields & set(Truth.model_fields) == set()
    # Equal sizes have different hashes: nobody can try them all.
    assert trial(1, 5.0)[0].truth_sha256 != trial(2, 5.0)[0].truth_sha256


def test_rates_are_counted_by_size_and_the_estimates_are_those_of_the_sizes(store: Store):
    write_trials(store, 20)
    rows = rows_of(store)
    for dose, some in rows.groupby("dose_percent"):
        assert some["ratio"].median() == pytest.approx(1 + dose / 100, abs=0.005)
    warehouse = Warehouse(store.warehouse)
    rates = warehouse.query("SELECT * FROM blind_rates ORDER BY dose_percent")
    assert rates["trials"].tolist() == [10, 10]
    assert rates["slower"].tolist() == [0, 10]
    assert rates["different"].tolist() == [0, 10]
    run = {"device": MADE.device, "arch": MADE.arch, "threads": np.int32(1), "cpus": "", "power_mode": None}
    assert (
        blind_rates_text(warehouse, run)
        == "hidden slow-downs were found: of 5 % in 10 of 10; false alarms: 0 of 10"
    )
    for other in ({"device": "another"}, {"arch": "x86_64"}, {"threads": 2}, {"cpus": "0"}):
        assert blind_rates_text(warehouse, {**run, **other}) is None


@pytest.mark.parametrize("damage", ["changed", "missing", "other version"])
def test_a_truth_that_was_changed_is_named_and_the_others_are_kept(store: Store, damage: str):
    write_trials(store)
    folder = store.blind / trial(3, 5.0)[0].session_id
    if damage == "missing":
        (folder / TRUTH_FILE).unlink()
    elif damage == "changed":
        (folder / TRUTH_FILE).write_text((folder / TRUTH_FILE).read_text().replace("5.0", "2.0"))
    else:
        (folder / TRIAL_FILE).write_text('{"schema": 99}')
    warehouse = Warehouse(store.warehouse)
    (refused,) = write_blind_trials(store, warehouse)
    assert refused == folder.name
    warehouse.publish()
    assert len(warehouse.query("SELECT * FROM blind_trials")) == 3


def test_a_rebuild_gives_the_same_rows_and_another_lab_is_merged_with_its_trials(
    store: Store, tmp_path: Path
):
    write_trials(store)
    for sme2 in ("off", "on"):
        replace(MADE, sme2=sme2, rounds=1).write(store.runs)
    sync(store, quiet)
    before = Warehouse(store.warehouse).query("SELECT * FROM blind_trials")
    assert len(before) == 4
    assert differences(store, quiet)[0] == []
    assert rebuild(store, quiet).refused == []
    assert Warehouse(store.warehouse).query("SELECT * FROM blind_trials").equals(before)
    here = Store(tmp_path / "here")
    for _ in range(2):
        assert merge(here, store.root, quiet).refused == []
        assert Warehouse(here.warehouse).query("SELECT * FROM blind_trials").equals(before)


def facts_of(document: Document) -> dict[str, str]:
    [section] = [section for section in document.sections if section.title == "What it rests on"]
    [grid] = section.blocks
    assert isinstance(grid, Grid)
    return dict(map(tuple, grid.table.rows))


@pytest.mark.parametrize("device", [MADE.device, pytest.param("another-device", marks=pytest.mark.thorough)])
def test_rates_stand_beside_the_verdict_of_their_device_alone(store: Store, device: str):
    for run in (MADE, replace(MADE, sme2="on")):
        run.write(store.runs)
    write_trials(store, device=device)
    sync(store, quiet)
    warehouse = Warehouse(store.warehouse)
    with heard() as said:
        document = session_document(warehouse, MADE.session_id)
    assert false_sentences(warehouse, said) == []
    facts = facts_of(document)
    text = markdown_of(document)
    if device == MADE.device:
        rates = "hidden slow-downs were found: of 5 % in 2 of 2; false alarms: 0 of 2"
        assert facts["blind trials on this device"] == rates
        assert "no blind trials" not in text
    else:
        assert "blind trials on this device" not in facts
        assert "there were no blind trials on it" in text


def test_trials_that_were_removed_have_no_rows_any_more(store: Store):
    write_trials(store)
    assert len(rows_of(store)) == 4
    shutil.rmtree(store.blind)
    assert rows_of(store).empty
