from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.errors import WarehouseError
from sme2_assets.store import CHECKOUT
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.console import open_console
from sme2_assets.warehouse.docs import BEGIN, END, PAGE, with_schema
from sme2_assets.warehouse.history import write_regressions
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.test_publish import write_nothing

AA_SESSION = "20260115T000000-cccccc.toy_cnn-fp32.linux"

QUESTIONS = (CHECKOUT / "docs" / "questions.md").read_text()
GUIDE = (CHECKOUT / "docs" / "warehouse.md").read_text()
QUERIES = re.findall(r"^```sql\n(.*?)^```", QUESTIONS, re.MULTILINE | re.DOTALL)


def test_the_schema_in_the_docs_is_up_to_date():
    page = PAGE.read_text()
    assert page == with_schema(page), "run: python -m sme2_assets.warehouse.docs"


def test_an_outdated_section_is_replaced_and_the_rest_kept():
    made = with_schema(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert made.startswith("before\n")
    assert made.endswith(f"{END}\nafter\n")
    assert "\nold\n" not in made
    assert with_schema(made) == made


@pytest.mark.parametrize("page", ["no section", f"only {BEGIN}", f"only {END}"])
def test_a_page_without_the_section_is_refused(page: str):
    with pytest.raises(WarehouseError, match="no schema section"):
        with_schema(page)


@pytest.fixture(scope="module")
def asked(paired: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A hardware pair, an emulated pair, an A/A session, and nights of which the later ones are slower."""
    folder = tmp_path_factory.mktemp("asked")
    warehouse = Warehouse(folder / "warehouse")
    shutil.copytree(paired.root / "tables", warehouse.root / "tables")
    shutil.copytree(paired.root.parent / "runs", folder / "runs")
    nights = [
        MadeRun(
            sme2="on",
            variant="toy_cnn-int8",
            session_id=f"202602{night + 1:02d}T000000-bbbbbb",
            started_at=datetime(2026, 2, night + 1, tzinfo=UTC),
            matrix_speedup=3.0 if night < 5 else 1.0,
            rounds=1,
            iterations=1,
            seed=night,
            paired=False,
        )
        for night in range(10)
    ]
    identical = [_identical_arm(folder / "runs", arm) for arm in ("a", "b")]
    ingest(warehouse, *identical, *(night.write(folder / "runs") for night in nights))
    warehouse.publish()
    compare_session(warehouse, AA_SESSION)
    write_regressions(warehouse, folder / "acknowledged.txt")
    warehouse.publish()
    return warehouse


def _identical_arm(runs: Path, arm: str) -> Path:
    """One of two arms that are the same; a session of its own kind, so its manifest says so."""
    made = MadeRun(session_id=AA_SESSION, seed=ord(arm)).write(runs)
    manifest = json.loads((made / "manifest.json").read_text())
    manifest |= {"experiment": "aa", "arm": arm, "run_id": f"{AA_SESSION}-{arm}"}
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made.rename(runs / manifest["run_id"])


@pytest.mark.parametrize("number", range(1, len(QUERIES) + 1))
def test_the_questions_of_the_docs_have_answers(asked: Warehouse, real_warehouse: Warehouse, number: int):
    """On known times, and on measured ones, which also tell what was not delegated."""
    answers = {}
    for name, warehouse in (("asked", asked), ("measured", real_warehouse)):
        with open_console(warehouse) as console:
            answer = console.ask(QUERIES[number - 1])
            answers[name] = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    nothing_is_right = 20
    why_not_delegated = 11
    if number == nothing_is_right:
        assert answers == {"asked": [], "measured": []}
        return
    rows = answers["measured" if number == why_not_delegated else "asked"]
    assert rows
    if "fidelity = 'hardware'" in QUERIES[number - 1]:
        assert all(row.get("platform") != "emulated" for row in rows)


BASH = re.findall(r"^```bash\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_every_way_to_open_the_warehouse_works_while_a_measurement_publishes(
    asked: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Commands and snippets of the page, as they are written, in a folder whose data/ is the warehouse's."""
    (tmp_path / "data").symlink_to(asked.root.parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    for command in "".join(BASH).splitlines():
        with publishing(asked):
            assert said_by(command).strip(), command
    for snippet in PYTHON:
        names: dict[str, Any] = {}
        with publishing(asked):
            exec(snippet, names)
        frames = [value for value in names.values() if isinstance(value, pd.DataFrame)]
        assert frames
        assert all(len(frame) for frame in frames)
    assert len(duckdb.sql("FROM 'timeline.parquet'")) > 100


@contextmanager
def publishing(warehouse: Warehouse) -> Iterator[None]:
    """In the meantime somebody does."""
    write_nothing(warehouse)
    with ThreadPoolExecutor() as others:
        published = others.submit(warehouse.publish)
        yield
    published.result()


def said_by(command: str) -> str:
    """What a documented command prints: `sme2` in this process, for that is quick; DuckDB's shell itself."""
    given, _, piped = command.rpartition(" | ")
    stdin = shlex.split(given)[1] if given else ""
    words = shlex.split(piped)
    if words[0] == ".venv/bin/sme2":
        done = CliRunner().invoke(main, ["--data", "data", *words[1:]], input=stdin, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output
    shell = shutil.which(words[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shell, f"{words[0]} is in the dev extra"
    return subprocess.run([shell, *words[1:]], capture_output=True, text=True, check=True).stdout
