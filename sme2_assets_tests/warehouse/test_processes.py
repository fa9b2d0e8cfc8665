"""Times of processes, against the same sums by pandas, one inference after the other."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.warehouse import processes
from sme2_assets.warehouse.processes import process_times

CATEGORIES = ("CONV", "GEMM", "Data Movement", "Elementwise", "Other")
TIMELINE = {
    **{"run_id": "run_name", "round": "INTEGER", "iteration": "INTEGER", "is_warmup": "BOOLEAN"},
    **{"kind": "VARCHAR", "backend": "VARCHAR", "category": "VARCHAR", "known": "BOOLEAN"},
    **{"delegate": "INTEGER", "duration_ns": "BIGINT"},
}


def made_rows(seed: int, inferences: int, emulated: bool) -> pd.DataFrame:
    """Rows of two runs whose inferences took different operators, in no order."""
    made = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for run_id, number, iteration in (
        (run, round_, i) for run in ("a", "b") for round_ in range(3) for i in range(inferences)
    ):
        place = {"run_id": run_id, "round": number, "iteration": iteration + 5, "is_warmup": iteration < 2}
        for _ in range(made.integers(0, 6)):
            backend = made.choice(["xnnpack", "portable", "other delegate"])
            rows.append(
                place
                | {"kind": "operator", "backend": backend, "category": made.choice(CATEGORIES)}
                | {"known": made.random() < 0.9, "duration_ns": int(made.integers(0, 90_000))}
            )
        for delegate in range(made.integers(0, 3)):
            beyond_ns = int(made.integers(-900, 9_000))
            overhead = {"kind": "delegate_overhead", "backend": "framework", "delegate": delegate}
            rows.append(place | overhead | {"known": True, "duration_ns": beyond_ns})
        rows.append(
            place | {"kind": "framework_overhead", "backend": "framework", "known": True, "duration_ns": 700}
        )
    frame = pd.DataFrame(rows).sample(frac=1, random_state=seed, ignore_index=True)
    return frame.assign(duration_ns=None) if emulated else frame


def floored(seed: int) -> pd.DataFrame:
    made = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {"run_id": run, "delegate": delegate, "category": category, "floored": int(made.integers(1, 9))}
            for run in ("a", "b")
            for delegate in range(2)
            for category in made.choice(CATEGORIES, 2, replace=False)
        ]
    )


def counted(rows: pd.DataFrame, floors: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.register("floors", floors)
        connection.execute("CREATE TYPE run_name AS ENUM ('a', 'b')")
        typed = ", ".join(f"{name}::{kind} AS {name}" for name, kind in TIMELINE.items())
        connection.execute(f"CREATE TABLE timeline AS SELECT {typed} FROM rows")
        connection.execute(
            "CREATE TABLE floored_rows AS SELECT * REPLACE (run_id::run_name AS run_id) FROM floors"
        )
        connection.execute(
            "CREATE TABLE calls AS SELECT *, greatest(duration_ns, 0)::DOUBLE AS hidden_ns FROM timeline "
            "WHERE kind = 'delegate_overhead'"
        )
        return process_times(connection)


def expected(rows: pd.DataFrame, floors: pd.DataFrame) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One inference after the other."""
    rows = rows[~rows["is_warmup"]].assign(category=rows["category"].fillna("Overhead"))
    most = floors.set_index(["run_id", "delegate", "category"])["floored"].to_dict()
    by_category, parts = [], []
    for (run, number), process in rows.groupby(["run_id", "round"]):
        inferences = [inference for _, inference in process.groupby("iteration")]

        def hidden(inference: pd.DataFrame, categories: tuple[str, ...], run: str = run) -> float:
            calls = inference[inference["kind"] == "delegate_overhead"]
            return sum(
                min(1000 * sum(most.get((run, delegate, each), 0) for each in categories), max(ns, 0))
                for delegate, ns in zip(calls["delegate"], calls["duration_ns"], strict=True)
            )

        for category in (*CATEGORIES, "Overhead"):
            its = [each for each in inferences if (each["category"] == category).any()]
            if not its:
                continue
            own = [each[each["category"] == category] for each in its]
            ns = [each["duration_ns"].sum() for each in own]
            if category == "Overhead":
                calls = [
                    each[each["kind"] == "delegate_overhead"]["duration_ns"].clip(lower=0) for each in own
                ]
                least, best = [time - call.sum() for time, call in zip(ns, calls, strict=True)], ns
            else:
                least, best = (
                    ns,
                    [time + hidden(each, (category,)) for time, each in zip(ns, its, strict=True)],
                )
            is_operator = category != "Overhead"
            by_category.append(
                {"run_id": run, "round": number, "category": category}
                | {"operators": max(len(each) for each in own) if is_operator else 0}
                | {"unknown_operators": max((~each["known"].astype(bool)).sum() for each in own)}
                | {"inferences": len(its), "median_ns": np.median(ns), "mean_ns": sum(ns) / len(inferences)}
                | {"least_ns": np.median(least), "most_ns": np.median(best)}
                | {"events": sum(map(len, own)), "total_ns": sum(ns)}
            )

        def mean(chosen: Any, inferences: list[pd.DataFrame] = inferences) -> float:
            return float(np.mean([each[chosen(each)]["duration_ns"].sum() for each in inferences]))

        def mean_most(categories: tuple[str, ...], inferences: list[pd.DataFrame] = inferences) -> float:
            most_ns = []
            for each in inferences:
                ns, all_ns = (
                    each[each["category"].isin(categories)]["duration_ns"].sum(),
                    each["duration_ns"].sum(),
                )
                most_ns.append(min(ns + hidden(each, categories), max(ns, all_ns)))
            return float(np.mean(most_ns))

        parts.append(
            {"run_id": run, "round": number, "inferences": len(inferences)}
            | {"inference_ns": mean(lambda each: each["kind"] != "")}
            | {"compute_ns": mean(lambda each: each["category"].isin(["CONV", "GEMM"]))}
            | {"compute_most_ns": mean_most(("CONV", "GEMM"))}
            | {"data_movement_ns": mean(lambda each: each["category"] == "Data Movement")}
            | {"data_movement_most_ns": mean_most(("Data Movement",))}
            | {"portable_ns": mean(lambda each: each["backend"] == "portable")}
            | {"delegate_overhead_ns": mean(lambda each: each["kind"] == "delegate_overhead")}
            | {"framework_overhead_ns": mean(lambda each: each["kind"] == "framework_overhead")}
            | {"delegate_calls": max((each["kind"] == "delegate_overhead").sum() for each in inferences)}
            | {"operators": max((each["kind"] == "operator").sum() for each in inferences)}
            | {"portable_operators": max((each["backend"] == "portable").sum() for each in inferences)}
        )
    return by_category, parts


def assert_same(found: pd.DataFrame, wanted: list[dict[str, Any]], keys: list[str]) -> None:
    columns = list(found.columns)
    pd.testing.assert_frame_equal(
        found.sort_values(keys, ignore_index=True),
        pd.DataFrame(wanted, columns=columns).sort_values(keys, ignore_index=True),
        check_dtype=False,
        rtol=1e-12,
    )


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(3, 9))
def test_the_times_of_a_process_are_those_of_its_inferences(seed: int, inferences: int):
    rows, floors = made_rows(seed, inferences, emulated=False), floored(seed)
    by_category, parts = counted(rows, floors)
    wanted_categories, wanted_parts = expected(rows, floors)
    assert_same(by_category, wanted_categories, ["run_id", "round", "category"])
    assert_same(parts, wanted_parts, ["run_id", "round"])


def test_rows_that_are_read_in_several_chunks_are_counted_once(monkeypatch: pytest.MonkeyPatch):
    rows, floors = made_rows(7, 300, emulated=False), floored(7)
    at_once = counted(rows, floors)
    monkeypatch.setattr(processes, "CHUNK", 1)
    assert len(rows) > 3 * 2048
    for found, wanted in zip(counted(rows, floors), at_once, strict=True):
        keys = [key for key in ("run_id", "round", "category") if key in found]
        assert_same(found, wanted.to_dict("records"), keys)


def test_emulated_processes_have_counts_and_no_times():
    by_category, parts = counted(made_rows(3, 5, emulated=True), floored(3))
    timed, _ = counted(made_rows(3, 5, emulated=False), floored(3))
    for frame in (by_category, parts):
        assert frame.filter(regex="_ns$").isna().all(axis=None)
    counts = ["run_id", "round", "category", "operators", "unknown_operators", "inferences", "events"]
    assert_same(by_category[counts], timed[counts].to_dict("records"), counts[:3])


def test_a_run_without_timed_inferences_has_no_rows():
    rows = made_rows(5, 2, emulated=False)
    assert rows["is_warmup"].all()
    by_category, parts = counted(rows, floored(5))
    assert by_category.empty
    assert parts.empty
    assert {"median_ns", "category"} <= {*by_category.columns}
