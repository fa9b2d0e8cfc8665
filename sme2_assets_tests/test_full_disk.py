"""A disk that is full or can only be read: a sentence with a remedy, no traceback. See also faults/."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sme2_assets.errors import disk_failure
from sme2_assets_tests.exchange.kit_folder import trace


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk takes the right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def sme2(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def assert_a_sentence(done: subprocess.CompletedProcess[str]) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == 1, said[-3000:]
    assert "Traceback" not in said, said[-3000:]
    assert "What to do:" in said, said[-3000:]


def leave(disk: Path, free_bytes: int) -> None:
    """Fills the disk up to so much."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "ballast").write_bytes(bytes(max(0, free - free_bytes)))


@pytest.mark.thorough
@pytest.mark.parametrize("free", [0, 64, 400, 1200])
def test_measuring_on_a_full_disk_ends_in_a_sentence(small_disk: Path, free: int):
    leave(small_disk, free << 10)
    assert_a_sentence(
        sme2(small_disk / "data", "profile", "toy_cnn-fp32", "--platform", "linux", "--sme2", "off")
    )


@pytest.mark.parametrize(
    "words",
    [
        ("ingest", "TRACE"),
        *(
            pytest.param(words, marks=pytest.mark.thorough)
            for words in (
                ("profile", "toy_cnn-fp32", "--platform", "linux", "--sme2", "off"),
                ("onboard", "mine"),
                ("warehouse", "rebuild"),
                ("dev", "--port", "3999"),
                ("emulator",),
            )
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_disk_that_can_only_be_read_is_told(small_disk: Path, tmp_path: Path, words: tuple[str, ...]):
    given = tmp_path / "toy_linux_sme2_on_t1.etdump"
    given.write_bytes(trace(30))
    data = small_disk / "data"
    data.mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = sme2(data, *(str(given) if word == "TRACE" else word for word in words))
    if words[0] in ("emulator", "warehouse") and done.returncode == 0:
        return  # nothing had to be written
    assert_a_sentence(done)


@pytest.mark.parametrize("doing", ["open file 'x' for reading", "write file 'x'"])
def test_a_file_that_may_not_be_touched_is_told_whatever_was_to_be_done_with_it(doing: str):
    told = disk_failure(f"IO Error: Cannot {doing}: Permission denied")
    assert told is not None
    assert told.what.startswith("A file may not be read or written: IO Error: Cannot")
