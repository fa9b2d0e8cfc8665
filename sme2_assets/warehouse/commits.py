"""Which Parquet files the tables are made of: a list that only grows.

A commit names files that belong together, such as all rows of a session: they are in the tables from one
moment on, or not at all. It is named by its number and its content, and its content names the commit before,
so a list that was changed or replaced is known as such. Files are named by their content, too, and never
written again.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from sme2_assets.errors import WarehouseError
from sme2_assets.store import sha256_of_file, sha256_of_text, write_text_atomically
from sme2_assets.warehouse.schema import RUN_ID

COMMITS = "commits"


@dataclass(frozen=True)
class TableFile:
    """Rows of a table. The path is relative to the folder of the tables: table, keys, content."""

    path: str
    sha256: str
    # Tells files of different columns apart.
    columns: str

    @property
    def table(self) -> str:
        return self.path.partition("/")[0]

    @property
    def part(self) -> str:
        """What there is one file of: a table, and values of its keys."""
        return self.path.rpartition("/")[0]

    @property
    def keys(self) -> dict[str, str]:
        return dict(key.split("=", 1) for key in self.part.split("/")[1:])

    @property
    def run_id(self) -> str | None:
        return self.keys.get(RUN_ID.name)

    def is_whole(self, tables: Path) -> bool:
        try:
            return sha256_of_file(tables / self.path) == self.sha256
        except OSError:
            return False


@dataclass(frozen=True)
class Commit:
    """Files that appear together, in place of all that was there of some runs, and of the same parts."""

    name: str
    runs: tuple[str, ...]
    files: tuple[TableFile, ...]


def add_commit(tables: Path, files: Sequence[TableFile], runs: Sequence[str]) -> None:
    with FileLock(tables.parent / "commit.lock"):
        last = (_names(tables) or [""])[-1]
        number = int(last.partition("-")[0] or 0) + 1
        content = {"after": last, "runs": list(runs), "files": [asdict(file) for file in files]}
        text = json.dumps(content, indent=1) + "\n"
        write_text_atomically(tables / COMMITS / f"{number:08d}-{sha256_of_text(text)[:16]}.json", text)


def commits_after(tables: Path, last: str | None) -> list[Commit] | None:
    """The commits after that one, or all; None where that one is not among them.

    One that is damaged adds nothing: its runs are in no table, as if they had never been taken in.
    """
    names = _names(tables)
    if last is not None:
        if last not in names:
            return None
        names = names[names.index(last) + 1 :]
    return [_read(tables, name) or Commit(name, (), ()) for name in names]


def damaged_commits(tables: Path) -> list[str]:
    return [name for name in _names(tables) if _read(tables, name) is None]


def require_commits(tables: Path) -> None:
    """Refuses tables that an earlier release wrote: their files are listed nowhere."""
    if (tables / COMMITS).is_dir():
        return
    if (tables / "runs").is_dir():
        raise WarehouseError(
            f"The tables in {tables} were written by an earlier release.",
            "Run `sme2 warehouse rebuild`: it makes them again from the run folders.",
        )
    # Before the first file: files without it are those of an earlier release.
    (tables / COMMITS).mkdir(parents=True, exist_ok=True)


def _names(tables: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(tables / COMMITS) if entry.name.endswith(".json"))
    except FileNotFoundError:
        return []


def _read(tables: Path, name: str) -> Commit | None:
    """None where the content is not what the name says."""
    try:
        text = (tables / COMMITS / name).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    if sha256_of_text(text)[:16] != name.partition("-")[2].removesuffix(".json"):
        return None
    content = json.loads(text)
    return Commit(name, tuple(content["runs"]), tuple(TableFile(**file) for file in content["files"]))


class Listing:
    """The files that a number of commits leave, one for each part."""

    def __init__(self, files: Iterable[TableFile] = ()) -> None:
        self.files: dict[str, TableFile] = {}
        self._parts_of_run: dict[str | None, set[str]] = defaultdict(set)
        for file in files:
            self._put(file)

    def apply(self, commit: Commit) -> None:
        for run in commit.runs:
            self.drop(run)
        for file in commit.files:
            self._put(file)

    def drop(self, run: str) -> None:
        for part in self._parts_of_run.pop(run, ()):
            self.files.pop(part, None)

    def _put(self, file: TableFile) -> None:
        self.files[file.part] = file
        if file.run_id is not None:
            self._parts_of_run[file.run_id].add(file.part)


def files_now(tables: Path) -> list[TableFile]:
    """The files of the tables."""
    listing = Listing()
    for commit in commits_after(tables, None) or []:
        listing.apply(commit)
    return list(listing.files.values())
