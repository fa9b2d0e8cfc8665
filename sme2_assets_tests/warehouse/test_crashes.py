from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# `python -m sme2_assets_tests.warehouse.crashes FOLDER 250` kills at every step.
KILLS = 30


@pytest.mark.thorough
def test_whenever_the_process_is_killed_no_session_is_half_there_and_none_is_lost(tmp_path: Path):
    words = [sys.executable, "-m", "sme2_assets_tests.warehouse.crashes", str(tmp_path), str(KILLS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == KILLS
    assert (found["half"], found["lost"], found["not measured"]) == ([], [], [])
    assert (found["refused"], found["findings"]) == ([], [])
    assert 2 < found["measured"] < KILLS + 2, "some were killed before the evidence was whole, others after"
    assert len(found["compared"]) == found["measured"]
    assert found["run folders"] == 2 * found["measured"]
