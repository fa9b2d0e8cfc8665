"""`sme2 sql`: what it answers, what it refuses, and that a query can be stopped."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.cli.sql_shell import completions, is_complete
from sme2_assets.errors import WarehouseError
from sme2_assets.targets.environment.mac import parse_cpu_time
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.console import Console, Limits, open_console
from sme2_assets_tests.terminal import said_on_terminal

ENDLESS = "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b"
# Everything that could write, or read what is not the warehouse's. {out} is a file that must not appear,
# {secret} one that must not be read, {root} the warehouse's own folder.
FORBIDDEN = """
COPY runs TO '{out}'
COPY (SELECT 1) TO '{root}/tables/runs/evil.parquet'
COPY runs FROM '{secret}'
EXPORT DATABASE '{out}'
IMPORT DATABASE '{out}'
ATTACH '{out}'
ATTACH '{root}/tables/evil.duckdb'
DETACH warehouse
INSTALL httpfs
LOAD '{out}'
UPDATE EXTENSIONS
SET enable_external_access = true
SET memory_limit = '1TB'
RESET lock_configuration
SET VARIABLE x = 1
PRAGMA enable_profiling
PRAGMA database_list
CALL enable_logging()
USE memory
CREATE TABLE t AS SELECT 1
CREATE TEMP TABLE t AS SELECT 1
CREATE TABLE memory.main.t AS SELECT 1
CREATE OR REPLACE VIEW runs AS SELECT 1
CREATE PERSISTENT SECRET s (TYPE http)
INSERT INTO runs SELECT * FROM runs
UPDATE runs SET sme2 = 'on'
DELETE FROM runs
TRUNCATE runs
DROP VIEW latest_runs
ALTER TABLE runs ADD COLUMN x INTEGER
COMMENT ON TABLE runs IS 'mine'
BEGIN
CHECKPOINT
VACUUM
PREPARE x AS SELECT 1
EXPLAIN ANALYZE COPY runs TO '{out}'
SELECT 1; COPY runs TO '{out}'
SELECT * FROM read_csv('{secret}')
SELECT * FROM '{secret}'
SELECT * FROM read_text('{secret}')
SELECT * FROM read_blob('/etc/passwd')
SELECT * FROM read_json('{secret}')
SELECT * FROM read_text('/proc/self/environ')
SELECT * FROM read_text('{root}/../{secret_name}')
SELECT * FROM read_text('{root}/tables/../../{secret_name}')
SELECT * FROM read_text('file://{root}/tables/../../{secret_name}')
SELECT * FROM glob('/etc/*')
SELECT * FROM glob('{root}/tables/../../*')
SELECT * FROM sniff_csv('{secret}')
SELECT * FROM parquet_metadata('{secret}')
SELECT * FROM read_duckdb('{out}')
SELECT * FROM query('CREATE TABLE t AS SELECT 1')
SELECT * FROM enable_profiling(save_location = '{out}')
SELECT * FROM enable_logging(storage_path = '{out}')
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{secret}'')'))
SELECT * FROM duckdb_secrets()
SELECT getenv('HOME')
SELECT * FROM a_frame_of_this_process
"""


@pytest.fixture(scope="module")
def data(paired: Warehouse) -> Path:
    """The data folder of a published warehouse, as `--data` names it."""
    return paired.root.parent


def sme2(data: Path, *words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["--data", str(data), *words], input=stdin, catch_exceptions=False)


@pytest.fixture(scope="module")
def console(paired: Warehouse) -> Iterator[Console]:
    with open_console(paired) as opened:
        yield opened


@pytest.mark.parametrize("statement", FORBIDDEN.strip().splitlines())
def test_nothing_writes_and_nothing_outside_is_read(
    console: Console, paired: Warehouse, tmp_path: Path, statement: str
):
    a_frame_of_this_process = pd.DataFrame({"x": [1]})
    assert len(a_frame_of_this_process) == 1
    secret = paired.root.parent / "secret.csv"
    secret.write_text("name,word\nme,swordfish\n")
    before = contents(paired.root)
    given = statement.format(out=tmp_path / "evil", secret=secret, secret_name=secret.name, root=paired.root)
    with pytest.raises(WarehouseError) as refused:
        console.ask(given)
    assert "swordfish" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert contents(paired.root) == before


def contents(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_connection_alone_refuses_what_the_parser_would_let_pass(paired: Warehouse, tmp_path: Path):
    """The second lock, without the first."""
    connection = paired.open_published()
    for statement in (
        f"COPY runs TO '{tmp_path}/evil.csv'",
        f"ATTACH '{tmp_path}/evil.duckdb'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "CREATE TABLE t AS SELECT 1",
        "DELETE FROM runs",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)
    connection.close()
    assert list(tmp_path.iterdir()) == []


def test_the_event_level_history_is_read_from_parquet_all_the_same(paired: Warehouse):
    with open_console(paired) as console:
        [[rows]] = console.ask("SELECT count(*) FROM timeline").rows
        [[also]] = console.ask("SELECT count(*) FROM (SELECT * FROM timeline ORDER BY duration_ns)").rows
    assert rows == also > 100


def test_a_query_beyond_its_time_is_stopped_and_the_console_goes_on(paired: Warehouse):
    with open_console(paired) as console:
        patient = console._limits
        # The second gives rows from the start, and never ends giving them.
        for endless in (ENDLESS, "SELECT * FROM range(100000000000)"):
            console._limits = Limits(timeout_s=0.5)
            with pytest.raises(WarehouseError, match=r"longer than 0\.5 seconds"):
                console.ask(endless)
            console._limits = patient
            assert console.ask("SELECT 1").rows == [(1,)]


def test_a_query_beyond_its_memory_says_so(paired: Warehouse):
    with (
        open_console(paired, Limits(memory="100MB")) as console,
        pytest.raises(WarehouseError, match="more memory than the 100MB"),
    ):
        console.ask("SELECT string_agg(range::VARCHAR) FROM range(30000000)")
    with (
        pytest.raises(WarehouseError, match="not an amount of memory"),
        open_console(paired, Limits(memory="lots")),
    ):
        pass


@pytest.mark.parametrize(
    "query",
    [
        "SELECT range FROM range(100000000)",
        "SELECT list(range) FROM range(2000000)",
        "SELECT [{'a': true}] AS a, list({'a': true}) FROM range(1000000)",
    ],
)
def test_rows_have_no_more_memory_than_the_query(paired: Warehouse, query: str):
    with (
        open_console(paired, Limits(memory="100MB")) as console,
        pytest.raises(WarehouseError, match="more memory than the 100MB"),
    ):
        console.ask(query)


def test_a_cell_that_no_table_could_show_in_time_is_refused(data: Path):
    query = "SELECT repeat('x', 20000000) AS x"
    refused = sme2(data, "sql", query)
    assert refused.exit_code == 1
    assert "too much text for a table" in refused.stderr
    assert len(sme2(data, "sql", query, "--json").stdout) > 20000000


def test_json_of_any_length_is_written_as_it_comes(data: Path, tmp_path: Path):
    """More rows than would fit into the memory that the query may have."""
    written = tmp_path / "rows.json"
    query = "SELECT range AS n, repeat('x', 100) AS x FROM range(600000)"
    assert sme2(data, "sql", query, "-o", str(written), "--memory", "50MB").exit_code == 0
    rows = json.loads(written.read_text())
    assert [row["n"] for row in rows] == list(range(600000))
    assert sme2(data, "sql", "SELECT 1 WHERE false", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM run", 'Did you mean "runs"'),
        ("SELECT median FROM latency_summary", '"median_ns"'),
        ("SELECT variant\nFROM runs\nWHERE sme = 'on'", "LINE 3"),
        ("SELEC 1", "syntax error"),
        ("PIVOT runs ON sme2 USING count(*)", "IN ('off', 'on')"),
        ("", "no query"),
        ("DROP TABLE runs", "this is DROP"),
        ("SELECT * FROM read_csv('/etc/passwd')", "outside the warehouse"),
    ],
)
def test_an_error_says_where_and_what_is_near_without_a_traceback(data: Path, query: str, said: str):
    done = sme2(data, "sql", query)
    assert done.exit_code == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_query_comes_as_argument_from_a_file_or_from_standard_input(data: Path, tmp_path: Path):
    query = "SELECT count(*) AS n FROM runs"
    (tmp_path / "query.sql").write_text(f"{query};\n-- and\n{query};")
    assert sme2(data, "sql", query).stdout == sme2(data, "sql", stdin=query).stdout
    assert sme2(data, "sql", "-f", str(tmp_path / "query.sql")).stdout.count("1 row") == 2
    assert "not both" in sme2(data, "sql", query, "-f", str(tmp_path / "query.sql")).stderr


def test_every_format_has_the_same_rows(data: Path, tmp_path: Path):
    columns = "run_id, started_at, median_ns, NULL AS nothing, [1, 2] AS some"
    query = f"SELECT {columns} FROM latency_summary WHERE fidelity <> 'emulated' ORDER BY run_id"
    as_json = json.loads(sme2(data, "sql", query, "--json").stdout)
    as_csv = list(csv.DictReader(io.StringIO(sme2(data, "sql", query, "--format", "csv").stdout)))
    sme2(data, "sql", query, "-o", str(tmp_path / "rows.parquet"))
    sme2(data, "sql", query, "-o", str(tmp_path / "rows.csv"))
    sme2(data, "sql", query, "-o", str(tmp_path / "rows.json"))
    as_parquet = duckdb.sql(f"FROM '{tmp_path}/rows.parquet'").fetchall()
    assert len(as_json) == len(as_csv) == len(as_parquet) == 2
    assert [row["run_id"] for row in as_json] == [row["run_id"] for row in as_csv]
    assert [row["run_id"] for row in as_json] == [row[0] for row in as_parquet]
    assert [row["median_ns"] for row in as_json] == [float(row["median_ns"]) for row in as_csv]
    assert as_json[0]["nothing"] is None
    assert as_json[0]["some"] == [1, 2]
    assert duckdb.sql(f"SELECT typeof(started_at) FROM '{tmp_path}/rows.parquet'").fetchall()[0] == (
        "TIMESTAMP WITH TIME ZONE",
    )
    assert list(csv.DictReader((tmp_path / "rows.csv").open())) == as_csv
    assert json.loads((tmp_path / "rows.json").read_text()) == as_json
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", "rows.csv", "rows.json"}


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("1 AS a, 2 AS a, 'x' AS a", ["a", "a_1", "a_2"]),
        ("1 AS a, 2 AS A, '=x' AS \"a b\"", ["a", "A_1", "a b"]),
        ("1 AS a, 2 AS a, 3 AS a_1", ["a", "a_1", "a_1_1"]),
    ],
)
def test_columns_of_one_name_keep_their_own_values_in_every_format(
    data: Path, tmp_path: Path, columns: str, names: list[str]
):
    [as_json] = json.loads(sme2(data, "sql", f"SELECT {columns}", "--json").stdout)
    [as_csv] = csv.DictReader(io.StringIO(sme2(data, "sql", f"SELECT {columns}", "--format", "csv").stdout))
    sme2(data, "sql", f"SELECT {columns}", "-o", str(tmp_path / "rows.parquet"))
    parquet = duckdb.sql(f"FROM '{tmp_path}/rows.parquet'")
    assert list(as_json) == list(as_csv) == parquet.columns == names
    assert tuple(as_json.values()) == parquet.fetchall()[0]
    assert [value.lstrip("'") for value in as_csv.values()] == [str(value) for value in as_json.values()]


@pytest.mark.parametrize("how", [(), ("--records",)])
def test_a_backslash_and_brackets_are_shown_as_they_are(data: Path, how: tuple[str, ...]):
    printed = sme2(data, "sql", "SELECT 'C:\\' AS \"end\\\", '[red]x[/]' AS \"[bold]\"", *how).stdout
    assert "C:\\" in printed
    assert "\\\\" not in printed
    assert "[red]x[/]" in printed
    assert "[bold]" in printed


def test_a_table_shows_as_many_rows_as_asked_for_and_cuts_no_cell(data: Path):
    printed = sme2(data, "sql", "SELECT * FROM timeline", "--limit", "3").stdout
    assert "the first 3 rows; there are more" in printed
    assert "sme2_evidence" in printed
    assert "…" not in printed
    assert "LIMIT 3" in sme2(data, "sql", "SELECT 1", "--limit", "3", "--json").stderr


def test_a_file_is_written_whole_or_not_at_all(data: Path, tmp_path: Path):
    kept = tmp_path / "rows.parquet"
    kept.write_text("what was there")
    for query in ("SELECT * FROM nothing", "SELECT 1; SELECT 2", "SELECT error('no')", ENDLESS):
        assert sme2(data, "sql", query, "-o", str(kept), "--timeout", "0.5").exit_code == 1
    assert kept.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [kept]
    assert "no folder" in sme2(data, "sql", "SELECT 1", "-o", str(tmp_path / "not" / "there.csv")).stderr
    assert "--output" in sme2(data, "sql", "SELECT 1", "--format", "parquet").stderr
    assert "gives no format" in sme2(data, "sql", "SELECT 1", "-o", str(tmp_path / "rows.xlsx")).stderr


@pytest.mark.parametrize("name", ["rows.csv", "rows.json"])
def test_rows_go_to_the_file_that_a_link_points_to_and_replace_no_pipe(data: Path, tmp_path: Path, name: str):
    target, link = tmp_path / "real" / name, tmp_path / name
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    assert sme2(data, "sql", "SELECT 42 AS answer", "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert "42" in target.read_text()
    pipe = tmp_path / f"pipe{link.suffix}"
    os.mkfifo(pipe)
    refused = sme2(data, "sql", "SELECT 1", "-o", str(pipe))
    assert refused.exit_code == 1
    assert f"{pipe} is not a regular file" in refused.stderr
    assert pipe.is_fifo()


def test_a_file_that_standard_output_goes_to_is_not_replaced(data: Path, tmp_path: Path):
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), "sql", "SELECT 1"]
    printed = tmp_path / "printed"
    with printed.open("w") as handle:
        before = printed.stat().st_ino
        done = subprocess.run(
            [*command, "-o", "/dev/stdout", "--format", "csv"],
            stdout=handle, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "/dev/stdout is not a regular file. " in done.stderr.replace("\n", " ")
    assert printed.stat().st_ino == before


def test_a_query_that_is_no_text_is_refused_wherever_it_comes_from(data: Path, tmp_path: Path):
    query = tmp_path / "query.sql"
    query.write_bytes(b"SELECT '\xff'")
    # As Python reads what is no UTF-8 on standard input.
    taken = query.read_text(errors="surrogateescape")
    for done in (
        sme2(data, "sql", "-f", str(query)),
        sme2(data, "sql", taken),
    ):
        assert done.exit_code == 1
        assert "is not text in UTF-8" in done.stderr


def test_a_query_may_have_all_the_time_there_is(data: Path):
    assert sme2(data, "sql", "SELECT 1", "--timeout", "1e300").exit_code == 0


def test_a_closed_standard_output_is_no_fault(data: Path):
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), "sql", "SELECT 1"]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "complete"),
    [
        ("SELECT 1;", True),
        ("SELECT 1", False),
        ("SELECT 1; -- done", True),
        ("SELECT 1 -- done;", False),
        ("SELECT ';", False),
        ("SELECT 'it''s';", True),
        ('SELECT ";', False),
        ("SELECT 1 /* ; */", False),
        ("SELECT 1; /* more", False),
        ("SELECT 1\n;", True),
        ("", False),
    ],
)
def test_a_query_ends_with_its_semicolon(typed: str, complete: bool):
    assert is_complete(typed) == complete


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: list[str], home: Path) -> None:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "dumb", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.ours = ours
        self.said = ""

    def wait_for(self, text: str, seconds: float = 300) -> None:
        """Reads until the text came, and forgets what was before it."""
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self.ours], [], [], 0.2)[0]:
                self.said += os.read(self.ours, 65536).decode(errors="replace")
        self.said = self.said.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def wait_until_busy(self) -> None:
        """Until it has computed for a while since now."""
        before = self._now()[1]
        self._until(lambda: self._now()[1] > before + 1)

    def wait_until_idle(self) -> None:
        """Until it waits for something."""
        self._until(lambda: self._now()[0].startswith("S"))

    def _until(self, answer: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not answer():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def _now(self) -> tuple[str, float]:
        """Its state, and how many seconds it has computed."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            words = ["ps", "-o", "state=,time=", "-p", str(self.process.pid)]
            state, computed = subprocess.run(words, capture_output=True, text=True).stdout.split()
            return state, parse_cpu_time(computed) or 0.0
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("latency_s", ["latency_summary"]),
        ("runs.run", ["runs.run_id"]),
        (".ta", [".tables"]),
        ("SEL", ["SELECT"]),
        ("sel", ["select"]),
        ("nothing_like_it", []),
    ],
)
def test_tab_completes_names_commands_and_keywords(word: str, names: list[str]):
    assert completions(word, [".tables", "latency_summary", "latency_rounds", "run_id"]) == names


def on_terminal(data: Path, columns: int, *words: str) -> list[str]:
    """The lines that a command prints on a terminal of that many columns."""
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), *words]
    return said_on_terminal(command, columns, "dumb").replace("\r", "").splitlines()


@pytest.mark.parametrize("file_format", ["csv", "json", "table"])
def test_text_does_not_control_the_terminal(data: Path, file_format: str):
    query = "SELECT chr(27) || '[2Jx' AS x, chr(155) || '2J' AS y"
    said = "\n".join(on_terminal(data, 80, "sql", query, "--format", file_format))
    assert "[2Jx" in said
    assert not set(said) & {"\x1b", "\x9b"}


def test_a_wide_table_fits_the_terminal_and_counts_what_is_hidden(data: Path, console: Console):
    lines = on_terminal(data, 80, "sql", "FROM timeline")
    assert max(map(len, lines)) <= 80
    every = [str(row[0]) for row in console.ask("DESCRIBE timeline").rows]
    shown = [cell.strip() for cell in lines[1].strip("┃").split("┃")]
    assert shown == every[: len(shown)]
    told = re.search(r"(\d+) columns hidden: --records", " ".join(lines[-2:]))
    assert told is not None
    assert int(told[1]) == len(every) - len(shown)


def test_few_wide_rows_are_records_with_every_column(data: Path, console: Console):
    lines = on_terminal(data, 80, "sql", "FROM runs LIMIT 2")
    assert max(map(len, lines)) <= 80
    every = [str(row[0]) for row in console.ask("DESCRIBE runs").rows]
    for name in every:
        assert sum(line.split()[:1] == [name] for line in lines) == 2, name
    assert lines[-1] == "2 rows"


def test_a_table_that_fits_is_a_table_and_records_are_had_for_the_asking(data: Path):
    query = "SELECT run_id, sme2 FROM runs ORDER BY run_id"
    assert any("┃" in line for line in on_terminal(data, 80, "sql", query))
    lines = on_terminal(data, 80, "sql", query, "--records")
    assert not any("┃" in line for line in lines)
    assert (
        sum(line.startswith("run_id ") for line in lines)
        == sum(line.startswith("row ") for line in lines)
        > 1
    )
    refused = sme2(data, "sql", query, "--records", "--format", "csv")
    assert refused.exit_code == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_shell_answers_survives_ctrl_c_and_remembers(data: Path, tmp_path: Path):
    # Ctrl-C is for whoever the terminal belongs to, so the shell has to be that.
    lead = (
        "import fcntl, os, signal, sys, termios; "
        # A shell starts what runs in its background without this signal, and that is inherited.
        "signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    sql = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), "sql"]
    shell = Terminal([sys.executable, "-c", lead, *sql], tmp_path)
    try:
        shell.wait_for("sme2> ")
        shell.type("SELECT count(*) AS n\n")
        shell.wait_for("...> ")
        shell.type("FROM runs;\n")
        shell.wait_for("1 row")
        shell.wait_for("sme2> ")
        shell.type(".schema run\n")
        shell.wait_for('Did you mean "runs"')
        shell.wait_for("sme2> ")
        shell.type(".schema runs\n")
        shell.wait_for("session_id")
        shell.wait_for("sme2> ")
        shell.type(".tables\n")
        shell.wait_for("latency_summary")
        shell.wait_for("sme2> ")
        shell.type(f"{ENDLESS};\n")
        shell.wait_until_busy()
        shell.type("\x03")
        shell.wait_for("stopped")
        shell.wait_for("sme2> ")
        shell.type("SELECT half")
        shell.wait_for("SELECT half")
        # Python sees a signal at once only while it waits for a key; between two keys, at the next one.
        shell.wait_until_idle()
        shell.type("\x03")
        shell.wait_for("sme2> ")
        shell.type("DROP TABLE runs;\n")
        shell.wait_for("this is DROP")
        shell.wait_for("sme2> ")
        shell.type("SELECT max(round) FROM latency_s\t\n;\n")
        shell.wait_for("latency_summary")
        shell.wait_for("sme2> ")
        shell.type("help\n")
        shell.wait_for("Tab completes")
        shell.wait_for("sme2> ")
        shell.type("exit\n")
        assert shell.process.wait(300) == 0
    finally:
        shell.process.kill()
        os.close(shell.ours)
    history = (tmp_path / "sme2" / "sql_history").read_text()
    assert "FROM runs;" in history
