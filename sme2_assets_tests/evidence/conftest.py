from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sme2_assets_tests.evidence.old_data import unpack_old_data


@pytest.fixture
def old_data(tmp_path: Path, made_once: Callable[..., Path]) -> Path:
    return Path(shutil.copytree(made_once("old-data", unpack_old_data), tmp_path / "made")) / "old"
