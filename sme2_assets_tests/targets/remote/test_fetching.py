"""Results that are fetched from a device: whose fault it is when they do not arrive."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sme2_assets.errors import RunnerError, Sme2Error
from sme2_assets_tests.targets.remote.devices import RemoteDevice


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of this computer that has room for 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False)
    if made.returncode != 0:
        pytest.skip("no file systems can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("files", [1, 2, 1000])
def test_a_full_disk_on_this_side_is_not_the_machine_s_fault(
    remote_device: RemoteDevice, full_disk: Path, files: int
):
    """Whether a file does not fit, the last of several, or the disk has no more names to give."""
    with remote_device.target().workspace() as workspace:
        each = f'head -c {1_200_000 // files} /dev/zero > "$0/$n"'
        made = f'mkdir "$0" && for n in $(seq {files}); do {each}; done'
        workspace.run(["sh", "-c", made, workspace.path("big")], {}, 120)
        with pytest.raises(Sme2Error, match="this computer") as caught:
            workspace.get("big", full_disk / "big")
    assert not isinstance(caught.value, RunnerError), "nothing is wrong with the machine, or with the runner"
    assert "Make room" in str(caught.value.remedy)
    assert list(full_disk.iterdir()) == []


def test_a_link_among_the_results_is_called_one(remote_device: RemoteDevice, tmp_path: Path):
    with remote_device.target().workspace() as workspace:
        made = 'mkdir "$0"; ln -s /etc/passwd "$0/shortcut"'
        workspace.run(["sh", "-c", made, workspace.path("made")], {}, 120)
        with pytest.raises(RunnerError, match=r"made/shortcut' is a link") as caught:
            workspace.get("made", tmp_path / "made")
    assert "must print nothing" not in str(caught.value.remedy)
    assert not (tmp_path / "made").exists()


@pytest.fixture
def fetch(remote_device: RemoteDevice, tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Fetches a result from a machine whose `tar` sends what a test wants."""
    tar = remote_device.folder / "bin" / "tar"
    sent = remote_device.folder / "sent"
    own = tar.readlink() if tar.is_symlink() else None
    tar.unlink(missing_ok=True)
    tar.write_text(f"#!/bin/sh\ncat {sent}\n")
    tar.chmod(0o755)

    def fetched(content: bytes) -> Path:
        sent.write_bytes(content)
        with remote_device.target().workspace() as workspace:
            workspace.run(["touch", workspace.path("made")], {}, 120)
            workspace.get("made", tmp_path / "made")
        return tmp_path / "made"

    yield fetched
    tar.unlink()
    if own is not None:
        tar.symlink_to(own)


def _archive(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    packed = io.BytesIO()
    member.size = len(content)
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_nothing_that_is_compressed_is_unpacked(fetch: Callable[[bytes], Path]):
    whole = _archive(tarfile.TarInfo("./made"), bytes(1_000_000))
    with pytest.raises(RunnerError, match="unpacked"):
        fetch(gzip.compress(whole))
    assert fetch(whole).stat().st_size == 1_000_000


@pytest.mark.parametrize("content", [b"", os.urandom(2000)], ids=["nothing", "noise"])
def test_what_is_no_archive_is_told(fetch: Callable[[bytes], Path], content: bytes):
    with pytest.raises(RunnerError, match="unpacked"):
        fetch(content)
