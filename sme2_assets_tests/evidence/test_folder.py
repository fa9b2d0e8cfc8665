"""The run folder: every version that was ever written opens, and nothing that changed since is believed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.folder import RunFolder, finish_sessions, open_verified, run_folders
from sme2_assets.evidence.foreign import ForeignStatement
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.warehouse.ingest import rows_of_run
from sme2_assets_tests.evidence.old_data import RUN_OF_VERSION


def test_there_is_a_folder_of_every_earlier_version():
    assert set(RUN_OF_VERSION) == set(Manifest.UPGRADES) == set(range(1, Manifest.VERSION))


@pytest.mark.parametrize("version", RUN_OF_VERSION)
def test_a_folder_of_an_earlier_version_opens_and_gives_its_rows(old_data: Path, version: int):
    path = old_data / "runs" / RUN_OF_VERSION[version]
    written = json.loads((path / "manifest.json").read_text())
    assert written["schema"] == version
    manifest = RunFolder.verified(path).manifest
    assert (manifest.run_id, manifest.experiment) == (path.name, "sme2")
    assert manifest.context.arch == "aarch64"
    assert manifest.context.device.startswith("neoverse-n1")
    rows = rows_of_run(path)
    executed = rows.inferences.loc[rows.inferences["pass"] == "etdump", "execute_ns"].sum()
    assert rows.timeline["duration_ns"].sum() == executed
    assert len(rows.kernel_samples) > 0 if version >= 3 else True


def test_what_is_read_is_what_was_written(old_data: Path, tmp_path: Path):
    manifest = RunFolder.open(old_data / "runs" / RUN_OF_VERSION[3]).manifest
    (tmp_path / manifest.run_id).mkdir()
    manifest.write(tmp_path / manifest.run_id)
    assert RunFolder.open(tmp_path / manifest.run_id).manifest == manifest


def test_a_manifest_of_a_newer_version_asks_for_an_update(old_data: Path):
    path = old_data / "runs" / RUN_OF_VERSION[3] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": Manifest.VERSION + 1}))
    with pytest.raises(EvidenceError, match=rf"manifest\.json has version {Manifest.VERSION + 1}") as raised:
        RunFolder.open(path.parent)
    assert raised.value.remedy == "Update sme2_assets."


@pytest.mark.parametrize("field", ["run_id", "identity", "context", "info"])
def test_a_manifest_that_lacks_a_part_is_refused_by_its_name(old_data: Path, field: str):
    path = old_data / "runs" / RUN_OF_VERSION[3] / "manifest.json"
    content = json.loads(path.read_text())
    del content[field]
    path.write_text(json.dumps(content))
    with pytest.raises(EvidenceError, match=field):
        RunFolder.open(path.parent)


def test_nobody_is_told_to_remove_what_they_may_not_read(old_data: Path, monkeypatch: pytest.MonkeyPatch):
    # Root may read everything, so the system's answer is given here.
    refused = Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(EvidenceError, match=r"You may not read .*manifest\.json") as error:
        RunFolder.open(old_data / "runs" / RUN_OF_VERSION[2])
    assert error.value.remedy == "Check who owns it."


def test_a_process_cannot_lead_out_of_its_folder(old_data: Path):
    path = old_data / "runs" / RUN_OF_VERSION[3] / "manifest.json"
    content = json.loads(path.read_text())
    content["info"]["processes"][0]["directory"] = "../../secret"
    path.write_text(json.dumps(content))
    with pytest.raises(EvidenceError, match="leads out of the run folder"):
        RunFolder.open(path.parent)


def test_a_folder_that_was_renamed_says_which_run_it_holds(old_data: Path):
    path = old_data / "runs" / RUN_OF_VERSION[3]
    moved = path.rename(path.with_name("20991231T000000-renamed"))
    with pytest.raises(EvidenceError, match=RUN_OF_VERSION[3]):
        open_verified(moved)


def test_every_file_of_a_folder_is_vouched_for(old_data: Path):
    path = old_data / "runs" / RUN_OF_VERSION[2]
    for file in sorted(it for it in path.rglob("*") if it.is_file() and it.name != "manifest.json"):
        content = file.read_bytes()
        file.write_bytes(content + b" ")
        with pytest.raises(EvidenceError, match=f"{file.name} is not the file that was measured"):
            open_verified(path)
        file.unlink()
        with pytest.raises(EvidenceError, match=f"{file.name} is missing"):
            open_verified(path)
        file.write_bytes(content)
    open_verified(path)


def test_a_folder_that_is_still_being_filled_is_not_a_run(old_data: Path):
    (old_data / "runs" / ".20991231T000000-half.x1").mkdir()
    assert [path.name for path in run_folders(old_data / "runs")] == sorted(
        {*RUN_OF_VERSION.values(), *(run.replace("sme2_on", "sme2_off") for run in RUN_OF_VERSION.values())}
    )
    assert run_folders(old_data / "nowhere") == []


BAD_IDS = ["/tmp/sme2-elsewhere", "../elsewhere", "a/b", ".hidden", "*", "a" * 201, "a\nb"]


@pytest.mark.parametrize("field", ["run_id", "session_id"])
@pytest.mark.parametrize("bad", BAD_IDS)
def test_an_id_that_could_lead_elsewhere_is_refused(old_data: Path, field: str, bad: str):
    path = old_data / "runs" / RUN_OF_VERSION[5]
    _change(path, **{field: bad})
    with pytest.raises(EvidenceError, match=f"{field}: .* cannot be used"):
        open_verified(path)


def _change(folder: Path, **fields: str) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **fields}))


def test_a_hidden_folder_is_moved_nowhere_but_to_its_own_name(old_data: Path, tmp_path: Path):
    runs = old_data / "runs"
    off, on = (runs / RUN_OF_VERSION[5].replace("sme2_on", f"sme2_{state}") for state in ("off", "on"))
    for number, (name, fields) in enumerate(
        [
            (".evil", {"run_id": str(tmp_path / "moved")}),
            (".evil.a1b2c3d4", {"run_id": "../../moved"}),
            (".moved", {}),
            (".moved.a1b2c3d4", {}),
            (".sessions.a1b2c3d4", {"session_id": "/abs"}),
            (f".{off.name}", {}),
        ]
    ):
        hostile = runs / name
        shutil.copytree(off, hostile)
        _change(hostile, **fields)
        if number % 2:
            os.utime(hostile / "manifest.json", (0, 0))
    (runs / f".{on.name}.link").symlink_to(on)
    waiting = off.rename(runs / f".{off.name}.x1y2z3w4")
    before = {path.name for path in runs.iterdir()}
    refused = finish_sessions(runs)
    assert {path.name for path in runs.iterdir()} == before - {waiting.name} | {off.name}
    assert not (tmp_path / "moved").exists()
    assert not list(tmp_path.rglob("moved"))
    # Those that somebody may still be filling are not named.
    assert sorted(refused) == [f".{off.name}", f".{on.name}.link", ".evil.a1b2c3d4", ".moved.a1b2c3d4"]
    assert "run_id" in refused[".evil.a1b2c3d4"].what
    assert "does not have its name" in refused[".moved.a1b2c3d4"].what


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["manifest.json", "foreign.json", "operators.json"])
def test_what_is_no_file_is_refused_and_never_waited_for(old_data: Path, kind: str, name: str):
    path = old_data / "runs" / RUN_OF_VERSION[5]
    (path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path / name)
    elif kind == "device":
        (path / name).symlink_to("/dev/zero")
    else:
        (path / name).mkdir()
    with within_seconds(120):
        if name == "foreign.json":
            with pytest.raises(EvidenceError, match="not a regular file"):
                ForeignStatement.read(path / name)
        else:
            with pytest.raises(EvidenceError, match=r"not a regular file|symbolic link"):
                open_verified(path)


@contextmanager
def within_seconds(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("it waits for something that never comes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_document_that_is_too_large_is_not_read(tmp_path: Path):
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EvidenceError, match="larger than any file of its kind"):
        Manifest.read(tmp_path / "manifest.json")


@pytest.mark.parametrize("linked", ["round_00", "round_00/latency/result.json"])
def test_a_file_that_is_reached_by_a_link_is_not_evidence(old_data: Path, tmp_path: Path, linked: str):
    path = old_data / "runs" / RUN_OF_VERSION[5] / linked
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match=f"{linked} is a symbolic link"):
        open_verified(old_data / "runs" / RUN_OF_VERSION[5])


def test_the_room_needs_neither_dagster_nor_torch_nor_duckdb():
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; import sme2_assets.evidence.folder, sme2_assets.evidence.numerics; "
            "print(sorted({'dagster', 'torch', 'duckdb', 'executorch'} & set(sys.modules)))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"
