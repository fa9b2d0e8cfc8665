from __future__ import annotations

from pathlib import Path

import pytest

from sme2_assets_tests.evidence.old_data import unpack_old_data


@pytest.fixture
def old_data(tmp_path: Path) -> Path:
    return unpack_old_data(tmp_path)
