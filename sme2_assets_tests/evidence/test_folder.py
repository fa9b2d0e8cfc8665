"""The run folder: every version that was ever written opens, and nothing that changed since is believed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.folder import RunFolder, open_verified, run_folders
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
    monkeypatch.setattr(Path, "read_bytes", refused)
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
