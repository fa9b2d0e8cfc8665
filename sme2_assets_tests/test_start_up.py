"""What a command loads before it answers, and what it does where the data folder is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest

HEAVY = {"pandas", "numpy", "duckdb", "dagster", "torch", "executorch", "matplotlib", "scipy"}
LOADED = """
import sys
from sme2_assets.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(code, *sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start_up")
    warehouse = Warehouse(folder / "warehouse")
    ingest(warehouse, MadeRun(rounds=1, iterations=1).write(folder / "runs"))
    warehouse.publish()
    return folder


@pytest.mark.parametrize(
    ("words", "code", "allowed"),
    [
        (["--help"], 0, set()),
        (["sql", "SELECT 1"], 0, {"duckdb"}),
        (["profile", "toy_cmm"], 1, {"numpy"}),
        (["demo", "toy_cmm"], 1, {"numpy"}),
        (["explain", "toy_cmm"], 1, {"numpy", "duckdb"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_short_answer_loads_nothing_heavy(data: Path, words: list[str], code: int, allowed: set[str]):
    command = [sys.executable, "-c", LOADED, "--data", str(data), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [ended, *modules] = done.stderr.splitlines()[-1].split()
    assert int(ended) == code
    assert HEAVY & set(modules) <= allowed
    if code:
        assert "did you mean 'toy_cnn'" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["sql", "SELECT 1"],
        ["explain", "toy_cnn"],
        ["report", "toy_cnn"],
        ["report", "--all"],
        ["history", "toy_cnn"],
        ["language", "toy_cnn"],
        ["export", "toy_cnn"],
    ],
    ids=" ".join,
)
def test_a_mistyped_data_folder_is_an_error_and_none_is_made(tmp_path: Path, words: list[str]):
    folder = tmp_path / "dta"
    done = CliRunner().invoke(main, ["--data", str(folder), *words])
    assert done.exit_code == 1, done.output
    assert f"There is no data folder {folder}" in done.output
    assert not folder.exists()
