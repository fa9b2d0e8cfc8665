"""Results that are fetched from a machine: whose fault it is when they do not arrive."""

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
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine


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


@pytest.mark.parametrize("size", [3_000_000, 1_040_000, 600_000], ids=["archive", "its end", "unpacked"])
def test_a_full_disk_on_this_side_is_not_the_machine_s_fault(
    ssh_machine: SshMachine, full_disk: Path, size: int
):
    with ssh_machine.target().workspace() as workspace:
        made = f'head -c {size} /dev/zero > "$0"'
        workspace.run(["sh", "-c", made, workspace.path("big")], {}, 120)
        with pytest.raises(Sme2Error, match="this computer") as caught:
            workspace.get("big", full_disk / "big")
    assert not isinstance(caught.value, RunnerError), "nothing is wrong with the machine, or with the runner"
    assert "Make room" in str(caught.value.remedy)
    assert list(full_disk.iterdir()) == []


def test_a_link_among_the_results_is_called_one(ssh_machine: SshMachine, tmp_path: Path):
    with ssh_machine.target().workspace() as workspace:
        made = 'mkdir "$0"; ln -s /etc/passwd "$0/shortcut"'
        workspace.run(["sh", "-c", made, workspace.path("made")], {}, 120)
        with pytest.raises(RunnerError, match=r"made/shortcut' is a link") as caught:
            workspace.get("made", tmp_path / "made")
    assert "must print nothing" not in str(caught.value.remedy)
    assert not (tmp_path / "made").exists()


@pytest.fixture
def fetch(ssh_machine: SshMachine, tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Fetches a result from a machine whose `tar` sends what a test wants."""
    tar = ssh_machine.folder / "bin" / "tar"
    sent = ssh_machine.folder / "sent"
    tar.write_text(f"#!/bin/sh\ncat {sent}\n")
    tar.chmod(0o755)

    def fetched(content: bytes) -> Path:
        sent.write_bytes(content)
        with ssh_machine.target().workspace() as workspace:
            workspace.run(["touch", workspace.path("made")], {}, 120)
            workspace.get("made", tmp_path / "made")
        return tmp_path / "made"

    yield fetched
    tar.unlink()


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


@pytest.mark.parametrize("gnu", [True, False], ids=["gnu", "pax"])
def test_a_sparse_file_does_not_fill_the_disk(fetch: Callable[[bytes], Path], tmp_path: Path, gnu: bool):
    if gnu:
        member = bytearray(_archive(tarfile.TarInfo("./made")))
        # In the header of the old format: the type, one piece of no bytes at the end, and the real size.
        member[156:157] = b"S"
        member[386:410] = b"%011o\0%011o\0" % (1 << 30, 0)
        member[483:495] = b"%011o\0" % (1 << 30)
        member[148:156] = b"%06o\0 " % (sum(member[:148]) + 8 * ord(" ") + sum(member[156:512]))
        sent = bytes(member)
    else:
        info = tarfile.TarInfo("./made")
        info.pax_headers = {"GNU.sparse.size": str(1 << 30), "GNU.sparse.map": f"{1 << 30},0"}
        sent = _archive(info)
    with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
        assert archive.getmembers()[0].size == 1 << 30
    with pytest.raises(RunnerError, match="is sparse"):
        fetch(sent)
    assert not (tmp_path / "made").exists()


def test_a_name_that_no_file_can_have_is_told(fetch: Callable[[bytes], Path]):
    member = tarfile.TarInfo("./made")
    member.pax_headers = {"path": "ma\0de"}
    with pytest.raises(RunnerError, match="cannot be the name"):
        fetch(_archive(member))


@pytest.mark.parametrize("content", [b"", os.urandom(2000)], ids=["nothing", "noise"])
def test_what_is_no_archive_is_told(fetch: Callable[[bytes], Path], content: bytes):
    with pytest.raises(RunnerError, match="unpacked"):
        fetch(content)
