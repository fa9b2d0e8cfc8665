"""What an error suggests: a name that somebody may have meant, or none."""

from __future__ import annotations

import pytest

from sme2_assets.errors import did_you_mean, disk_failure

MODELS = ("toy_cnn", "mobilenet_v3_small", "squeeze_sam", "resnet8")


@pytest.mark.parametrize(
    ("given", "near"),
    [("toy_cn", "toy_cnn"), ("mobilenet_v3", "mobilenet_v3_small"), ("sqeeze_sma", "squeeze_sam")],
)
def test_a_near_name_is_suggested(given: str, near: str):
    assert did_you_mean(given, MODELS) == f" (did you mean {near!r}?)"


@pytest.mark.parametrize("given", ["bert", "tiny_lm", "yolo_nas"])
def test_a_name_far_from_all_others_gets_no_suggestion(given: str):
    assert did_you_mean(given, MODELS) == ""


@pytest.mark.parametrize("words", ["disk I/O error", "database or disk is full"])
def test_the_words_of_sqlite_for_a_full_disk_are_known(words: str):
    told = disk_failure(f"(sqlite3.OperationalError) {words}\n[SQL: PRAGMA journal_mode=WAL]")
    assert told is not None
    assert told.what.startswith("The disk is full")
    assert "sme2 gc" in (told.remedy or "")
