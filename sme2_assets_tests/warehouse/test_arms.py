"""Sessions whose arms differ in something other than SME2: what is found, and what they leave alone."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sme2_assets.analysis.claims import heard
from sme2_assets.analysis.factors import FACTORS
from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.folder import finish_sessions
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest
from sme2_assets.report.arms import arms_table, scaling_table, show_arms, verdict_of_arms
from sme2_assets.report.overview import overview_document, overview_rows
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.history import find_regressions, series_of
from sme2_assets.warehouse.read import comparison_of_session, latest_comparisons, latest_sessions
from sme2_assets.warehouse.rebuild import differences, rebuild, sync
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.made.run_folder import MadeRun

LATER = "20260102T000000-bbbbbb"
ONE = MadeRun(factor="threads", arm="a", session_id=LATER, sequence=5)
FP16 = MadeRun(variant="toy_cnn-fp16", factor="precision", arm="a", session_id=LATER, sequence=6)


def sessions() -> dict[str, list[MadeRun]]:
    """By what they differ in, with known ratios: the second arm takes 0.8 of the time of the first."""
    faster = {"arm": "b", "slowness": 0.8, "seed": 2}
    three = replace(ONE, arms=3)
    other = {"pte_sha256": "d" * 64, **faster}
    return {
        "threads": [
            three,
            replace(three, threads=2, **faster),
            replace(three, threads=4, arm="c", slowness=1.25, seed=3),
        ],
        "precision": [FP16, replace(FP16, variant="toy_cnn-int8", **other)],
        "model": [
            replace(FP16, factor="model"),
            replace(FP16, factor="model", variant="other-fp16", **other),
        ],
        "executorch": [
            replace(ONE, factor="executorch", executorch="1.5.0"),
            replace(ONE, factor="executorch", runner_sha256="d" * 64, **faster),
        ],
        "cpus": [replace(ONE, factor="cpus", cpus="0"), replace(ONE, factor="cpus", cpus="1", **faster)],
    }


def take(store: Store, *runs: MadeRun) -> Warehouse:
    for run in runs:
        run.write(store.runs)
    warehouse = Warehouse(store.warehouse)
    take_session(store, warehouse, store.run_dir(runs[0].run_id))
    warehouse.publish()
    return warehouse


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def pair(store: Store) -> Warehouse:
    """An SME2 pair, and an emulated one, as `sme2 profile` leaves them."""
    for run in (MadeRun(), MadeRun(platform="emulated", fidelity="emulated", rounds=1)):
        warehouse = take(store, run, replace(run, sme2="on"))
        compare_session(warehouse, run.session_id)
    warehouse.publish()
    return warehouse


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A session of each factor. Only for reading."""
    store = Store(tmp_path_factory.mktemp("arms") / "data")
    for runs in sessions().values():
        warehouse = take(store, *runs)
        compare_session(warehouse, runs[0].session_id)
    warehouse.publish()
    return warehouse


@pytest.mark.parametrize("factor", sessions())
def test_a_known_ratio_is_found_and_named(compared: Warehouse, factor: str):
    runs = sessions()[factor]
    stored = comparison_of_session(compared, runs[0].session_id)
    models = stored[stored["level"] == "model"].set_index("b_run_id")
    assert len(models) == len(runs) - 1, "each arm with the first"
    assert set(models["factor"]) == {factor}
    for run in runs[1:]:
        row = models.loc[run.run_id]
        assert row["a_run_id"] == runs[0].run_id
        # Operators are whole microseconds of some hundred.
        assert row["speedup"] == pytest.approx(1 / run.slowness, rel=0.02)
        assert row["speedup_low"] <= 1 / run.slowness * 1.02
        assert row["verdict"] == ("faster" if run.slowness < 1 else "slower")


# What the manifest of an arm says of each factor.
VALUES: dict[str, Callable[[Manifest], object]] = {
    "sme2": lambda manifest: manifest.identity.sme2,
    "precision": lambda manifest: manifest.identity.precision,
    **dict.fromkeys(("option", "model", "change"), lambda manifest: manifest.identity.variant),
    "executorch": lambda manifest: manifest.info.versions["executorch"],
    "threads": lambda manifest: manifest.identity.threads,
    "cpus": lambda manifest: manifest.identity.cpus,
    "power": lambda manifest: manifest.identity.power_mode,
}


def test_a_and_b_of_every_factor_are_what_the_manifests_of_the_arms_say(store: Store):
    second = {"arm": "b", "pte_sha256": "d" * 64}
    measured = {
        **sessions(),
        "sme2": [MadeRun(), MadeRun(sme2="on")],
        "option": [
            replace(FP16, factor="option"),
            replace(FP16, factor="option", variant="toy_cnn.width_8-fp16", **second),
        ],
        "change": [
            replace(FP16, factor="change"),
            replace(FP16, factor="change", variant="toy_cnn.rewrite_linear-int8", **second),
        ],
        "power": [replace(ONE, factor="power"), replace(ONE, factor="power", power_mode="boost", arm="b")],
    }
    assert set(measured) == set(VALUES) == set(FACTORS)
    for runs in measured.values():
        for run in runs:
            replace(run, rounds=1, sampled=False).write(store.runs)
    sync(store, print)
    rows = Warehouse(store.warehouse).query("FROM comparisons")
    arms = rows[["factor", "a_run_id", "a_value", "b_run_id", "b_value"]].drop_duplicates()
    assert arms["factor"].value_counts().to_dict() == {name: len(runs) - 1 for name, runs in measured.items()}
    for row in arms.to_dict("records"):
        for arm in ("a", "b"):
            manifest = Manifest.read(store.run_dir(row[f"{arm}_run_id"]) / MANIFEST_FILE)
            assert row[f"{arm}_value"] == str(VALUES[row["factor"]](manifest))


@pytest.mark.parametrize("factor", sessions())
def test_what_is_said_of_arms_is_true_of_what_was_measured(compared: Warehouse, factor: str):
    runs = sessions()[factor]
    rows = comparison_of_session(compared, runs[0].session_id)
    out = Console(file=io.StringIO(), width=200)
    with heard() as said:
        show_arms(out, compared, rows, arms_table(compared, runs[0].session_id), operators=True)
    assert len(said) > len(runs)
    assert false_sentences(compared, said) == []
    # The predicates are no formality: with the arms turned round the sentences are false.
    turned = rows.assign(a_value=rows["b_value"], b_value=rows["a_value"])
    with heard() as said:
        for row in turned[turned["level"] == "model"].to_dict("records"):
            verdict_of_arms(row)
    assert false_sentences(compared, said)


def test_the_verdict_names_what_differs(compared: Warehouse):
    rows = comparison_of_session(compared, sessions()["precision"][0].session_id)
    said = verdict_of_arms(rows[rows["level"] == "model"].to_dict("records")[0])
    # The framework's own time is the same in both arms.
    assert said.startswith("int8 is 1.24x (1.23 to 1.25, n=6)")
    assert "faster than fp16." in said
    assert "SME2" not in said


def test_identical_arms_are_called_by_their_letters(compared: Warehouse):
    session_id = sessions()["precision"][0].session_id
    rows = comparison_of_session(compared, session_id).assign(factor=None, a_value=None, b_value=None)
    out = Console(file=io.StringIO(), width=200)
    show_arms(out, compared, rows, arms_table(compared, session_id), operators=True)
    shown = out.file.getvalue()
    assert ": identical arms ==" in shown
    assert "arm b is 1.24x (1.23 to 1.25, n=6) faster than arm a." in shown
    assert "arm a ms  arm b ms" in shown
    assert "operator (arm a -> arm b)" in shown
    assert "SME2" not in shown


def test_a_scale_has_time_speedup_and_efficiency_of_each_count(compared: Warehouse):
    session_id = sessions()["threads"][0].session_id
    table = scaling_table(compared, session_id, comparison_of_session(compared, session_id))
    assert table.header == ["arm", "median ms", "speedup", "efficiency", "outputs"]
    assert [row[0] for row in table.rows] == ["1 thread", "2 threads", "4 threads"]
    assert [row[2][:5] for row in table.rows] == ["1", "1.24x", "0.80x"]
    # Of two threads that take 0.8 of the time, each does 62 %; of four that take more, 20 %.
    assert [row[3].partition(" ")[0] for row in table.rows][1:] == ["62%", "20%"]


def test_an_emulated_scale_has_kernels_and_no_times(store: Store):
    shape = {"platform": "emulated", "fidelity": "emulated", "rounds": 1, "sme2": "on"}
    first = replace(ONE, **shape)
    warehouse = take(store, first, replace(first, threads=2, arm="b"))
    rows = compare_session(warehouse, first.session_id)
    table = scaling_table(warehouse, first.session_id, rows)
    assert table.header == ["arm", "on the SME unit", "multiply-accumulates on it", "outputs"]
    assert table.rows[1] == ["2 threads", "2 of 3", "91%", "right, 90 dB"]
    assert rows["speedup"].isna().all()
    assert (rows["verdict"] == "not comparable").all()


def test_comparisons_of_other_factors_leave_all_that_is_said_of_sme2_as_it_was(store: Store, pair: Warehouse):
    def said_of_sme2() -> dict[str, list[str]]:
        views = ("latest_runs", "sme2_comparison", "aa_sessions", "emulated_twin")
        rows = {view: pair.query(f"FROM {view} ORDER BY ALL") for view in views}
        rows["overview"] = overview_rows(pair)
        return {
            **{name: each.astype(str).to_csv().splitlines() for name, each in rows.items()},
            "page": [repr(overview_document(pair, rows["overview"], lambda row: None))],
            "sessions": [run["run_id"] for run in latest_sessions(pair)],
        }

    before, nights = said_of_sme2(), series_of(pair)
    for runs in sessions().values():
        take(store, *runs)
        compare_session(pair, runs[0].session_id)
    pair.publish()
    assert said_of_sme2() == before
    assert len(pair.query("SELECT DISTINCT factor FROM comparisons")) == 6
    # An arm is a run like any other in the history of its own series, once. Versions have no series.
    after = series_of(pair)
    added = {run.run_id for name, runs in sessions().items() for run in runs if name != "executorch"}
    in_history = [set(rows["run_id"]) for rows in after.values()]
    assert set().union(*in_history) == added | set().union(*(set(rows["run_id"]) for rows in nights.values()))
    assert not any(rows["run_id"].duplicated().any() for rows in after.values())
    assert find_regressions(pair, store.root / "none").empty
    assert latest_comparisons(pair) == {runs[0].session_id for runs in sessions().values()}


def test_a_session_of_three_arms_is_whole_or_not_there(store: Store):
    runs = sessions()["threads"]
    folders = [run.write(store.runs) for run in runs]
    hidden = folders[2].with_name(f".{folders[2].name}.a1b2c3d4")
    folders[2].rename(hidden)
    with pytest.raises(EvidenceError, match="one of 3 arms of a session, and the folder of another one"):
        take_session(store, Warehouse(store.warehouse), folders[0])
    finish_sessions(store.runs)
    assert folders[2].is_dir(), "a process that died between the renames"
    assert len(sync(store, print).taken) == 3
    shutil.rmtree(folders[2])


@pytest.mark.thorough
def test_a_rebuild_gives_the_same_comparisons(store: Store, pair: Warehouse):
    for runs in sessions().values():
        take(store, *runs)
        compare_session(pair, runs[0].session_id)
    pair.publish()
    found, done = differences(store, print)
    assert (found, done.refused) == ([], [])
    assert len(rebuild(store, print).compared) == 7
