"""What killed processes left is removed at the next start, and nothing that somebody still uses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sme2_assets.evidence import leftovers
from sme2_assets.evidence.leftovers import remove_leftovers, workspace_folder
from sme2_assets.store import Store, new_directory
from sme2_assets.targets.lease import lease

KILLED = """
import sys, time
from pathlib import Path
from sme2_assets.evidence.leftovers import workspace_folder
from sme2_assets.store import new_directory
with workspace_folder() as work, new_directory(Path(sys.argv[1])) as staging:
    (work / "file").touch()
    (staging / "round_00").mkdir()
    print(work, staging, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(leftovers, "_OLD_S", -1)
    return Store(tmp_path / "data")


def test_the_folders_of_a_killed_process_go_and_those_of_a_living_one_stay(store: Store):
    command = [sys.executable, "-c", KILLED, str(store.run_dir("run"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    work, staging = map(Path, process.stdout.readline().split())
    with lease(store.leases, "phone", log=print):
        remove_leftovers(store)
        assert work.is_dir(), "it was in use"
        assert staging.is_dir(), "somebody measures"
    process.kill()
    process.wait()
    process.stdout.close()
    with workspace_folder() as own:
        remove_leftovers(store)
        assert own.is_dir()
    assert not work.exists()
    assert not staging.exists()


def test_a_whole_run_that_was_not_renamed_any_more_and_all_visible_things_stay(store: Store):
    whole = store.runs / ".20260101T000000-abcdef-toy.x1y2z3ab"
    seen = [
        store.runs / "run",
        store.root / "reports" / "toy",
        store.root / "models",
        store.leases / "x.lock",
    ]
    for folder in (whole, *seen[:-1]):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    store.leases.mkdir()
    seen[-1].touch()
    (store.root / ".gitignore").touch()
    remove_leftovers(store)
    assert all(path.exists() for path in (whole, *seen, store.root / ".gitignore"))


def test_files_of_a_broken_write_go_when_they_are_old(store: Store, monkeypatch: pytest.MonkeyPatch):
    pointers = store.root / "current" / "run"
    pointers.mkdir(parents=True)
    broken, young = pointers / ".toy.ab12cd34", pointers / ".toy.ab12cd35"
    for path in (broken, young):
        path.touch()
    os.utime(broken, (time.time() - 7200,) * 2)
    monkeypatch.setattr(leftovers, "_OLD_S", 3600)
    remove_leftovers(store)
    assert (broken.exists(), young.exists()) == (False, True)


def test_a_folder_that_is_being_filled_is_left_alone_while_it_is_young(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leftovers, "_OLD_S", 3600)
    with new_directory(store.run_dir("run")) as staging:
        remove_leftovers(store)
        (staging / "file").touch()
    assert (store.run_dir("run") / "file").exists()
