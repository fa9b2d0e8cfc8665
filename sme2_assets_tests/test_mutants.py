"""Marked code does what the product does, and says what it reaches; each planted fault is another program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sme2_assets_tests import mutants

PRODUCT = """
def total(values, twice=False):
    result = 0
    for value in values:
        if value > 1 and not (twice and value == 3): result += value * 2
    match result:
        case 4: return -1
    return result
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutants, "CHECKOUT", tmp_path)
    path = tmp_path / "product.py"
    path.write_text(PRODUCT)
    return path


def total(source: str):
    names: dict = {}
    exec(compile(source, "product.py", "exec"), names)
    return names["total"]


def test_marked_code_does_the_same_and_says_what_it_reaches(module: Path, monkeypatch: pytest.MonkeyPatch):
    every = list(enumerate(mutants.mutants_of(module)))
    folder = module.parent / "reached"
    folder.mkdir()
    (module.parent / f"{mutants.REACHED}.py").write_text(mutants.REACHED_SOURCE.format(folder=str(folder)))
    monkeypatch.syspath_prepend(module.parent)
    marked = total(mutants.marked(PRODUCT, every))
    sound = total(PRODUCT)
    for values in ([], [2], [1, 5, 3]):
        for twice in (False, True):
            assert marked(values, twice) == sound(values, twice)
    reached = {int(file.name) for file in folder.iterdir()}
    assert reached == {number for number, _ in every}


def test_each_fault_is_another_program(module: Path):
    every = list(mutants.mutants_of(module))
    planted = {mutants.planted(PRODUCT, mutant) for mutant in every}
    assert len(planted) == len(every) > 10
    sound = ast.dump(ast.parse(PRODUCT))
    assert all(ast.dump(ast.parse(source)) != sound for source in planted)
