from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sme2_assets.errors import ExportError
from sme2_assets.models.time_limit import VARIABLE, end_if_time_is_up, export_timeout_s, time_limit


def test_a_block_that_does_not_end_is_ended():
    with pytest.raises(ExportError, match=r"did not end within 0\.1 s"), time_limit(0.1):
        time.sleep(600)


class SlowToGo:
    def __del__(self) -> None:
        time.sleep(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_that_is_dropped_comes_again():
    """Python drops what is raised while it removes an object, or while its garbage collector calls back."""
    going = [SlowToGo()]

    def work() -> None:
        going.clear()
        time.sleep(30)

    with pytest.raises(ExportError, match="did not end"), time_limit(0.1):
        work()


def test_a_block_that_ends_is_left_alone():
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(600):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "nothing ends what comes after it"
    assert signal.getsignal(signal.SIGALRM) is before


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


EXPORT = """
import sys
from pathlib import Path
from sme2_assets.errors import ExportError
from sme2_assets.models.export import export_variant
try:
    export_variant("toy_cnn-fp32", Path(sys.argv[1]), log=lambda line: None)
except ExportError as error:
    print(error)
"""


def test_an_export_that_takes_too_long_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Callable[..., str]
):
    monkeypatch.setenv(VARIABLE, "0.05")
    # In a process of its own: what is broken off is an import, and half of torch is no use to other tests.
    said = python(EXPORT, tmp_path)
    assert "toy_cnn-fp32 could not be exported: it did not end" in said
    assert VARIABLE in said
    assert [path.name for path in (tmp_path / "models" / "toy_cnn-fp32").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ExportError, match=VARIABLE):
        export_timeout_s()


def test_a_limit_that_ends_inside_a_library_still_ends_the_export():
    """Passes wrap whatever is raised in them; and what an export can do without is not left out for it."""

    def wrapped() -> None:
        try:
            # The timer's own signal: on a busy machine a short time could be up before the pass has begun.
            signal.raise_signal(signal.SIGALRM)
        except ExportError as error:
            raise RuntimeError("a pass failed") from error

    with time_limit(600), pytest.raises(RuntimeError) as raised:
        wrapped()
    with pytest.raises(ExportError, match="did not end within"):
        end_if_time_is_up(raised.value)
    end_if_time_is_up(RuntimeError("something else"))
