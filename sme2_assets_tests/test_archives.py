"""Archives that others have packed: what becomes a file, and what never does."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sme2_assets import archives
from sme2_assets.archives import BadArchive, NotPlain, TooLarge, tar_members, unpack, zip_members


def _packed(*members: tuple[str, bytes], size: int = 0) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, size
            member.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(member, io.BytesIO(bytes(size)))
    packed.seek(0)
    return packed


def _below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_files_and_folders_are_unpacked_by_every_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # As in Debian 12, whose Python is 3.11.2.
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", None)
    sent = [("./made", tarfile.DIRTYPE), ("./made/empty", tarfile.DIRTYPE), ("./made/one", tarfile.REGTYPE)]
    unpack(tar_members(_packed(*sent)), tmp_path)
    assert _below(tmp_path) == {"made", "made/empty", "made/one"}


def test_a_wheel_is_unpacked_with_its_content(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "wheel", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("empty/", "")
        archive.writestr("lib/one.so", b"one" * 1_000_000)
    with zipfile.ZipFile(tmp_path / "wheel") as archive:
        unpack(zip_members(archive), tmp_path / "wheel_files")
    assert _below(tmp_path / "wheel_files") == {"empty", "lib", "lib/one.so"}
    assert (tmp_path / "wheel_files/lib/one.so").read_bytes() == b"one" * 1_000_000


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", tarfile.REGTYPE),
        ("/tmp/sme2-evil", tarfile.REGTYPE),
        ("../evil", tarfile.DIRTYPE),
        ("evil", tarfile.SYMTYPE),
        ("evil", tarfile.LNKTYPE),
        ("evil", tarfile.FIFOTYPE),
        ("evil", tarfile.CHRTYPE),
    ],
)
def test_whatever_is_in_an_archive_nothing_is_written_elsewhere(name: str, kind: bytes, tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(NotPlain, match="evil"):
        unpack(tar_members(_packed((name, kind))), folder)
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_wheel_that_leads_out_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        archive.writestr("lib/../../evil", b"evil")
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "wheel") as archive, pytest.raises(NotPlain, match="evil"):
        unpack(zip_members(archive), tmp_path / "folder")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("gnu", [True, False], ids=["gnu", "pax"])
def test_a_sparse_file_does_not_fill_the_disk(tmp_path: Path, gnu: bool):
    if gnu:
        member = bytearray(_packed(("made", tarfile.REGTYPE)).getvalue())
        # In the header of the old format: the type, one piece of no bytes at the end, and the real size.
        member[156:157] = b"S"
        member[386:410] = b"%011o\0%011o\0" % (1 << 30, 0)
        member[483:495] = b"%011o\0" % (1 << 30)
        member[148:156] = b"%06o\0 " % (sum(member[:148]) + 8 * ord(" ") + sum(member[156:512]))
        sent = bytes(member)
    else:
        sent = _with_records({"GNU.sparse.size": str(1 << 30), "GNU.sparse.map": f"{1 << 30},0"})
    with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
        assert archive.getmembers()[0].size == 1 << 30
    with pytest.raises(NotPlain, match="is sparse"):
        unpack(tar_members(io.BytesIO(sent)), tmp_path)
    assert _below(tmp_path) == set()


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path):
    with pytest.raises(NotPlain, match="cannot be the name"):
        unpack(tar_members(io.BytesIO(_with_records({"path": "ma\0de"}))), tmp_path)


def _with_records(records: dict[str, str]) -> bytes:
    member = tarfile.TarInfo("made")
    member.pax_headers = records
    return member.tobuf(tarfile.PAX_FORMAT) + bytes(10_240)


def test_too_many_bytes_and_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = [(str(number), tarfile.REGTYPE) for number in range(4)]
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    with pytest.raises(BadArchive, match="more than 3 files"):
        unpack(tar_members(_packed(*names)), tmp_path)
    monkeypatch.setattr(archives, "MOST_BYTES", 1_000_000)
    with zipfile.ZipFile(tmp_path / "wheel", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small", b"x")
        archive.writestr("bomb", bytes(1_000_000))
    with zipfile.ZipFile(tmp_path / "wheel") as archive, pytest.raises(BadArchive, match="1,000,000 bytes"):
        unpack(zip_members(archive), tmp_path / "folder")
    assert not (tmp_path / "folder" / "bomb").exists()


def test_what_does_not_fit_on_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    header = tarfile.TarInfo("large")
    header.size = 1 << 62
    packed = io.BytesIO(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    monkeypatch.setattr(archives, "MOST_BYTES", 1 << 63)
    with pytest.raises(TooLarge, match=r"'large' has .* are free"):
        unpack(tar_members(packed), tmp_path)
    assert _below(tmp_path) == set()


@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE]
)
def test_a_name_that_would_fill_the_memory_is_not_read(kind: bytes, tmp_path: Path):
    header = tarfile.TarInfo("name")
    header.type, header.size = kind, 1 << 40
    with pytest.raises(BadArchive, match="header in it is too large"):
        unpack(tar_members(io.BytesIO(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))), tmp_path)


def test_names_of_names_without_end_are_refused(tmp_path: Path):
    header = tarfile.TarInfo("name")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 5
    nested = (header.tobuf(tarfile.GNU_FORMAT) + b"name\0".ljust(512, b"\0")) * 5000
    with pytest.raises(BadArchive):
        unpack(tar_members(io.BytesIO(nested)), tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"x" * 10_000, gzip.compress(b"x" * 10_000)], ids=["nothing", "plain", "compressed"]
)
def test_what_is_no_archive_is_one_kind_of_error(content: bytes, tmp_path: Path):
    with pytest.raises(BadArchive):
        unpack(tar_members(io.BytesIO(content)), tmp_path)
    with pytest.raises(BadArchive), gzip.open(io.BytesIO(content)) as unpacked:
        unpack(tar_members(unpacked), tmp_path)


@given(cut=st.integers(1, 400), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 7)), max_size=3))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_archive_is_unpacked_or_refused(cut: int, flips: list[tuple[int, int]], tmp_path: Path):
    whole = _packed(("a/b", tarfile.REGTYPE), ("c", tarfile.REGTYPE), size=600).getvalue()
    packed = bytearray(gzip.compress(whole, mtime=0))[:cut]
    for place, bit in flips:
        packed[place % len(packed)] ^= 1 << bit
    folder = tmp_path / "folder"
    try:
        with gzip.open(io.BytesIO(packed)) as content:
            unpack(tar_members(content), folder)
    except BadArchive:
        pass
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
