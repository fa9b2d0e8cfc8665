"""Mutation: planted faults are counted as what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.evidence import arms
from sme2_assets.models.differences import mutation


@pytest.mark.parametrize("name", mutation.FAULTS)
@pytest.mark.parametrize("shape", [(40, 40), (1, 7), (33, 1), (5, 20)])
def test_every_fault_changes_a_value_whatever_its_shape_and_leaves_the_rest_alone(name, shape):
    rows = torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
    faulty = rows.clone()
    mutation.FAULTS[name](faulty)
    changed = (faulty != rows).sum().item()
    assert 0 < changed <= max(mutation.TILE**2, shape[0])


def test_nearly_all_faults_are_caught_and_the_outputs_alone_miss_most(tmp_path: Path):
    results = tmp_path / "scores.jsonl"
    command = ["mutate", "toy_cnn-int8", "--outputs", "--json", "--results", str(results)]
    first = CliRunner().invoke(main, command, catch_exceptions=False)
    assert first.exit_code == 0
    [score] = json.loads(first.stdout)
    assert score["operators"] == 8
    assert score["faults"] + score["equivalent"] == 8 * len(mutation.FAULTS)
    assert score["caught"] >= 0.95 * score["faults"]
    assert score["seen_in_outputs"] < 0.5 * score["faults"]
    again = CliRunner().invoke(main, command, catch_exceptions=False)
    assert json.loads(again.stdout) == [score]
    assert len(results.read_text().splitlines()) == 1, "what is finished is not run again"


@pytest.mark.thorough
def test_bounds_that_let_everything_through_are_shown_to_catch_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("WHOLE", "PART", "LANES", "ELEMENT", "TELLING"):
        monkeypatch.setattr(arms, name, 1e12)
    done = CliRunner().invoke(main, ["mutate", "toy_cnn-fp32", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["caught"] == 0


@pytest.mark.parametrize(
    "text",
    [
        *('{"variant": "toy_cnn-int8", "cau', "[1]", '{"variant": "toy_cnn-int8"}'),
        '{"variant": "toy_cnn-int8", "caught": 5}',
    ],
)
def test_a_file_of_results_that_was_cut_off_is_named(tmp_path: Path, text: str):
    results = tmp_path / "scores.jsonl"
    results.write_text(text)
    done = CliRunner().invoke(main, ["mutate", "toy_cnn-int8", "--results", str(results)])
    assert done.exit_code == 1
    assert "its last line was cut off" in done.stderr
    assert results.read_text() == text


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_tried(tmp_path: Path):
    results = tmp_path / "missing" / "scores.jsonl"
    done = CliRunner().invoke(main, ["mutate", "toy_cnn-int8", "--results", str(results)])
    assert done.exit_code == 1
    assert "cannot be written: No such file or directory." in done.stderr
    assert "What to do: " in done.stderr


def test_only_what_was_asked_for_is_shown_and_judged(tmp_path: Path):
    kept = {
        "operators": 1,
        "faults": 100,
        "equivalent": 0,
        "seen_in_outputs": None,
        "missed": {},
        "missed_in": [],
    }
    results = tmp_path / "scores.jsonl"
    scores = [
        {**kept, "variant": "toy_cnn-int8", "caught": 99},
        {**kept, "variant": "other-int8", "caught": 1},
    ]
    results.write_text("".join(f"{json.dumps(score)}\n" for score in scores))
    done = CliRunner().invoke(main, ["mutate", "toy_cnn-int8", "--json", "--results", str(results)])
    assert (done.exit_code, json.loads(done.stdout)) == (0, scores[:1])
