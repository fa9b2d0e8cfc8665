from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pytest

from sme2_assets.errors import WarehouseError
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import keys_of, rows_of_run
from sme2_assets.warehouse.publish import SNAPSHOTS_KEPT, is_undamaged
from sme2_assets.warehouse.schema import INFERENCES, RUNS, TABLES, TIMELINE, Column
from sme2_assets_tests.made.run_folder import MadeRun, ingest

VIEWS = {
    "latest_runs",
    "run_series",
    "latency_rounds",
    "latency_summary",
    "operator_summary",
    "category_summary",
    "sme2_comparison",
    "unit_use",
    "aa_sessions",
    "blind_rates",
    "history",
    "judged_samples",
    "executed_functions",
    "operator_rounds",
    "programs",
    "delegation_report",
    "operator_facts",
    "kernel_usage",
    "attribution_coverage",
    "bottlenecks",
    "emulated_twin",
    "delegate_calls",
    "traced_rounds",
    "missed_sme2",
    "module_summary",
    "headroom",
    "work_comparison",
    "work_history",
}

# Tables that are made of the rows of a run.
SUMMARIES = {
    "category_rounds",
    "category_times",
    "function_samples",
    "module_times",
    "operator_details",
    "part_rounds",
    "run_times",
}
RELATIONS = {table.name for table in TABLES} | SUMMARIES | VIEWS


def write_nothing(warehouse: Warehouse) -> None:
    """A commit without files, so that there is something to publish."""
    warehouse.write_together([])


def small_run(number: int) -> MadeRun:
    return MadeRun(session_id=f"20260101T0000{number:02d}-aaaaaa", rounds=1, warmup=0, iterations=1)


def test_an_empty_warehouse_has_all_tables_and_views_and_they_are_empty(warehouse: Warehouse):
    names = set(warehouse.query("SHOW TABLES")["name"])
    assert names == RELATIONS
    for name in names:
        assert warehouse.query(f"FROM {name}").empty, name


def test_columns_have_the_declared_types_whether_empty_or_not(warehouse: Warehouse, paired: Warehouse):
    for each in (warehouse, paired):
        for table in TABLES:
            described = each.query(f"DESCRIBE {table.name}")
            given = dict(zip(described["column_name"], described["column_type"], strict=True))
            declared = {column.name: column.type for column in table.all_columns}
            aliases = {"TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE"}
            assert given == {name: aliases.get(kind, kind) for name, kind in declared.items()}


def test_rows_older_than_a_column_have_null_there(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """History is kept when the schema grows: before and after the first run that has the new column."""
    ingest(warehouse, small_run(0).write(tmp_path))
    new = Column("weather", "VARCHAR", "The weather.")
    grown = {table: replace(table, columns=(*table.columns, new)) for table in (RUNS, TIMELINE)}
    monkeypatch.setattr("sme2_assets.warehouse.publish.TABLES", [grown.get(table, table) for table in TABLES])
    warehouse.publish()
    for table in ("runs", "timeline"):
        assert warehouse.query(f"SELECT DISTINCT weather FROM {table}")["weather"].isna().tolist() == [True]
    later = rows_of_run(small_run(1).write(tmp_path))
    keys = keys_of(later.manifest)
    parts = [
        (grown[TIMELINE], later.timeline.assign(weather="rain"), keys),
        (INFERENCES, later.inferences, keys),
        (grown[RUNS], later.runs.assign(weather="rain"), keys),
    ]
    warehouse.write_together(parts, [later.manifest.run_id])
    warehouse.publish()
    for table in ("runs", "timeline"):
        values = warehouse.query(f"SELECT weather FROM {table} GROUP BY ALL ORDER BY ALL")["weather"]
        assert values.isna().tolist() == [False, True]


def test_a_key_that_looks_like_a_number_stays_text(warehouse: Warehouse, tmp_path: Path):
    rows = rows_of_run(small_run(0).write(tmp_path))
    tables = ((TIMELINE, rows.timeline), (INFERENCES, rows.inferences), (RUNS, rows.runs))
    keys = {**keys_of(rows.manifest), "run_id": "007"}
    warehouse.write_together([(table, frame, keys) for table, frame in tables], ["007"])
    warehouse.publish()
    for table in ("runs", "timeline", "inferences", "latency_summary"):
        run_ids = warehouse.query(f"SELECT DISTINCT run_id FROM {table} ORDER BY run_id")["run_id"]
        assert run_ids.tolist() == ["007"], table


def test_the_published_file_opens_with_plain_duckdb(paired: Warehouse):
    with duckdb.connect(str(paired.link), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (4,)
        assert connection.execute("SELECT count(*) > 0 FROM timeline").fetchone() == (True,)
        assert connection.execute("SELECT count(*) FROM operator_summary").fetchone() == (4 * 8,)


def test_it_opens_from_any_folder_even_when_the_warehouse_was_given_relatively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    warehouse = Warehouse(Path("data/warehouse"))
    ingest(warehouse, small_run(0).write(tmp_path))
    warehouse.publish()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with duckdb.connect(str(tmp_path / "data" / "warehouse.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) > 0 FROM timeline").fetchone() == (True,)
    assert not warehouse.query("SELECT * FROM timeline").empty


def test_every_reader_remembers_what_files_say_about_themselves(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, small_run(0).write(tmp_path))
    warehouse.publish()
    with warehouse.connect() as first, warehouse.connect() as second:
        for connection in (first, second):
            assert connection.execute("SELECT current_setting('parquet_metadata_cache')").fetchone() == (
                True,
            )


def test_a_file_that_an_earlier_release_published_is_known_by_its_hash(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, small_run(0).write(tmp_path))
    published = warehouse.publish()
    number, content = published.stem.split("-")[1], published.read_bytes()
    earlier = published.with_name(f"warehouse-{number}-{hashlib.sha256(content).hexdigest()[:16]}.duckdb")
    published.rename(earlier)
    warehouse.link.unlink()
    warehouse.link.symlink_to(earlier)
    assert is_undamaged(earlier)
    assert warehouse.publish() == earlier, "it is what would be published now"
    earlier.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not is_undamaged(earlier)


def test_an_open_session_is_not_disturbed_by_publishing_and_pruning(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, small_run(0).write(tmp_path))
    opened = warehouse.publish()
    query = "SELECT (SELECT count(*) FROM runs), (SELECT count(DISTINCT run_id) FROM timeline)"
    with duckdb.connect(str(warehouse.link), read_only=True) as analyst, warehouse.connect() as ours:
        for number in range(1, SNAPSHOTS_KEPT + 2):
            ingest(warehouse, small_run(number).write(tmp_path))
            warehouse.publish()
            assert analyst.execute(query).fetchone() == ours.execute(query).fetchone() == (1, 1)
        assert not opened.exists(), "pruned, and still readable for those who hold it"
        with pytest.raises(duckdb.Error):
            analyst.execute("CREATE TABLE mine (x INTEGER)")
    published = SNAPSHOTS_KEPT + 2
    with warehouse.connect() as fresh:
        assert fresh.execute(query).fetchone() == (published, published)


def test_old_snapshots_are_pruned_in_numerical_order(warehouse: Warehouse):
    warehouse.snapshots.mkdir(parents=True)
    for number in range(999_997, 1_000_002):
        # With the checksum of an empty file.
        (warehouse.snapshots / f"warehouse-{number:06d}-00000000.duckdb").touch()
    newest = warehouse.publish()
    assert newest.name.startswith("warehouse-1000002-")
    kept = {path.name for path in warehouse.snapshots.iterdir()} - {newest.name}
    assert kept == {f"warehouse-{number:06d}-00000000.duckdb" for number in range(999_998, 1_000_002)}
    assert warehouse.link.resolve() == newest


def test_what_is_published_already_is_not_published_again(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, small_run(0).write(tmp_path))
    first = warehouse.publish()
    assert warehouse.publish() == first
    # Neither a damaged file nor a link to an older one passes for what was published.
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    second = warehouse.publish()
    assert second != first
    warehouse.link.unlink()
    warehouse.link.symlink_to(first)
    third = warehouse.publish()
    assert third != second
    assert warehouse.link.resolve() == third
    assert len(warehouse.query("FROM runs")) == 1


def test_a_reader_whose_snapshot_is_pruned_before_it_opens_takes_the_new_one(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    stale = warehouse.publish()
    write_nothing(warehouse)
    current = warehouse.publish()
    stale.unlink()
    targets = iter([stale])
    resolve = Path.resolve
    monkeypatch.setattr(
        Path,
        "resolve",
        lambda self, strict=False: next(targets, current) if self == warehouse.link else resolve(self),
    )
    # Also one who may only read.
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
    monkeypatch.setattr(Warehouse, "publish", Mock(side_effect=refused))
    assert warehouse.query("SELECT count(*) AS n FROM runs")["n"].tolist() == [0]


def test_a_foreign_write_ahead_log_is_not_replayed(warehouse: Warehouse):
    leftover = warehouse.staging / "publish"
    leftover.mkdir(parents=True)
    (leftover / "warehouse-000001.duckdb").write_bytes(b"half a file")
    (leftover / "warehouse-000001.duckdb.wal").write_bytes(b"not a log")
    warehouse.publish()
    assert warehouse.query("FROM runs").empty


def test_a_failed_publication_leaves_the_old_one(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ingest(warehouse, small_run(0).write(tmp_path))
    warehouse.publish()
    ingest(warehouse, small_run(1).write(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("sme2_assets.warehouse.publish.sql_file", lambda name: "SELECT no_such_column")
        with pytest.raises(duckdb.Error):
            warehouse.publish()
    assert len(warehouse.query("FROM runs")) == 1
    warehouse.publish()
    assert len(warehouse.query("FROM runs")) == 2


WRITER = """
import sys
from pathlib import Path
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import ingest
warehouse = Warehouse(Path(sys.argv[1]))
for folder in sys.argv[2:]:
    for _ in range(2):  # the second time over its own files
        ingest(warehouse, Path(folder))
        warehouse.publish()
"""

READER = """
import sys, time
from pathlib import Path
from sme2_assets.warehouse import Warehouse
warehouse, expected, reads = Warehouse(Path(sys.argv[1])), int(sys.argv[2]), 0
while True:
    # One query on one connection: one state of the warehouse.
    runs = warehouse.query('''
        SELECT run_id,
            (SELECT count(*) FROM timeline WHERE timeline.run_id = runs.run_id) AS rows,
            (SELECT count(*) FROM inferences WHERE inferences.run_id = runs.run_id) AS inferences,
            (SELECT sum(duration_ns) FROM timeline WHERE timeline.run_id = runs.run_id)
            = (SELECT sum(execute_ns) FROM inferences
                WHERE inferences.run_id = runs.run_id AND pass = 'etdump') AS adds_up
        FROM runs''')
    assert (runs["rows"] == 11).all() and (runs["inferences"] == 3).all() and runs["adds_up"].all(), runs
    strangers = warehouse.query('''
        SELECT run_id FROM timeline UNION SELECT run_id FROM inferences
        EXCEPT SELECT run_id FROM runs''')
    assert strangers.empty, strangers
    reads += 1
    if len(runs) == expected:
        break
    time.sleep(0.05)
print(reads)
"""


@pytest.mark.thorough
def test_writers_publishers_and_readers_at_once_lose_nothing(warehouse: Warehouse, tmp_path: Path):
    folders = [str(small_run(number).write(tmp_path / "runs")) for number in range(6)]

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(warehouse.root), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    readers = [start(READER, str(len(folders))) for _ in range(2)]
    writers = [start(WRITER, *folders[first::3]) for first in range(3)]
    try:
        for process in [*writers, *readers]:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err
        assert int(out) >= 1
    finally:
        for process in [*writers, *readers]:
            process.kill()
            process.communicate()
    assert len(warehouse.query("FROM runs")) == len(folders)
    assert list(warehouse.staging.iterdir()) == []
    # One publication takes what many wrote, so how many there were is a matter of chance: at least the four
    # of each writer, which follow its own commits. The last ones are kept, and nothing else.
    kept = warehouse.published()
    numbers = [int(path.name.split("-")[1]) for path in kept]
    assert numbers[-1] >= 4
    assert numbers == list(range(max(1, numbers[-1] + 1 - SNAPSHOTS_KEPT), numbers[-1] + 1))
    assert set(warehouse.snapshots.iterdir()) == set(kept)


def test_connections_of_one_process_do_not_lock_one_another(paired: Warehouse):
    with paired.connect() as first, paired.connect() as second:
        for connection in (first, second):
            assert connection.execute("SELECT count(*) FROM runs").fetchone() == (4,)
        with duckdb.connect(str(paired.link), read_only=True) as plain:
            assert plain.execute("SELECT count(*) FROM runs").fetchone() == (4,)


def test_a_question_is_answered_by_the_state_that_is_published(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, small_run(1).write(tmp_path))
    warehouse.publish()
    question = "SELECT run_id, arm FROM runs WHERE arm = ?"
    assert list(warehouse.query(question, ["off"])["arm"]) == ["off"]
    assert warehouse.query(question, ["on"]).empty
    ingest(warehouse, small_run(2).write(tmp_path))
    warehouse.publish()
    assert len(warehouse.query(question, ["off"])) == 2


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE mine (x INTEGER)",
        "INSERT INTO runs SELECT * FROM runs",
        "DELETE FROM runs",
        "DROP TABLE runs",
        "COPY runs TO '/dev/null' (FORMAT csv)",
        "ATTACH ':memory:' AS other",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE runs",
        "",
        "-- nothing",
        "SELEC 1",
        "SELECT nothing FROM runs",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
    ],
)
def test_a_query_cannot_write_or_read_anything_else(paired: Warehouse, sql: str):
    with pytest.raises(WarehouseError):
        paired.query(sql)
    assert len(paired.query("FROM runs")) == 4


def test_a_query_cannot_reach_beside_the_warehouse(paired: Warehouse):
    secret = paired.root.parent / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    for path in (secret, paired.root / ".." / "secret.csv"):
        with pytest.raises(WarehouseError, match="Permission Error"):
            paired.query(f"SELECT * FROM read_csv('{path}')")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "FROM runs",
        "DESCRIBE runs",
        "SHOW TABLES",
        "SUMMARIZE runs",
        "WITH a AS (SELECT 1) FROM a",
    ],
)
def test_what_only_reads_is_allowed(paired: Warehouse, sql: str):
    assert not paired.query(sql).empty


def test_parameters_are_values_and_not_sql(paired: Warehouse):
    hostile = "x'; DROP TABLE runs; --"
    assert paired.query("SELECT ? AS given", [hostile])["given"].tolist() == [hostile]
    assert paired.query("SELECT * FROM runs WHERE run_id = $run", {"run": hostile}).empty


def test_every_table_view_and_column_is_documented(paired: Warehouse):
    bare = paired.query(
        "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE database_name = 'warehouse' AND schema_name = 'main' AND coalesce(comment, '') = ''"
    )
    assert bare.empty, bare
    relations = paired.query(
        """
        SELECT table_name AS name, comment FROM duckdb_tables()
        WHERE database_name = 'warehouse' AND schema_name = 'main'
        UNION ALL
        SELECT view_name, comment FROM duckdb_views()
        WHERE database_name = 'warehouse' AND schema_name = 'main' AND NOT internal
        """
    )
    assert set(relations["name"]) == RELATIONS
    assert relations["comment"].str.len().gt(0).all(), relations


def test_a_run_is_found_without_opening_the_files_of_others(warehouse: Warehouse, tmp_path: Path):
    runs = [replace(small_run(number), variant=f"m{number}-fp32") for number in range(5)]
    ingest(warehouse, *(run.write(tmp_path) for run in runs))
    warehouse.publish()
    with warehouse.connect() as connection:
        plan = connection.execute(
            "EXPLAIN ANALYZE SELECT sum(duration_ns) FROM timeline WHERE run_id = ?",
            [replace(small_run(3), variant="m3-fp32").run_id],
        ).fetchall()[0][1]
    assert "Total Files Read: 1" in plan or "Scanning Files: 1/5" in plan, plan
