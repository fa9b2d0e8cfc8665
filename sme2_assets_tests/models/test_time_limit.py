from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sme2_assets.errors import ExportError
from sme2_assets.models.export import export_variant
from sme2_assets.models.time_limit import VARIABLE, export_timeout_s, time_limit


def test_a_block_that_does_not_end_is_ended():
    with pytest.raises(ExportError, match=r"did not end within 0\.1 s"), time_limit(0.1):
        time.sleep(60)


def test_a_block_that_ends_is_left_alone():
    with time_limit(0.2):
        pass
    time.sleep(0.3)


def test_outside_the_main_thread_there_is_no_limit():
    ended = []

    def work() -> None:
        with time_limit(0.01):
            time.sleep(0.1)
            ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended


def test_an_export_that_takes_too_long_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "0.05")
    with pytest.raises(ExportError, match=r"toy_cnn-fp32 could not be exported: it did not end") as error:
        export_variant("toy_cnn-fp32", tmp_path, log=print)
    assert VARIABLE in (error.value.remedy or "")
    assert [path.name for path in (tmp_path / "models" / "toy_cnn-fp32").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ExportError, match=VARIABLE):
        export_timeout_s()
