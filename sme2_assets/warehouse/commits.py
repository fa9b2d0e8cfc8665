"""Which Parquet files the tables are made of: a list that only grows.

A commit names files that belong together, such as all rows of a session: they appear in the tables at once,
or not at all. It is named by its number and its content, and its content names the commit before it, so a
list that was changed or replaced is recognised. The name of a file is used once, and no file is overwritten.

A file has the rows of one run, or a part of them if they are many, or those of a group of older runs that
were merged (merge.py).

A rebuild places its files beside those that are there, and begins a new list with a commit of all of them:
what comes before that commit counts no more.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from filelock import FileLock

from sme2_assets.errors import WarehouseError
from sme2_assets.store import sha256_of_file, sha256_of_text, write_text_atomically
from sme2_assets.warehouse.schema import RUN_ID

COMMITS = "commits"
# In paths: the group whose rows a file has.
GROUP = "merged"
# Marks the commits that say which runs are in which group, so that the others need not be read for it.
_OF_GROUPS = ".groups.json"
# Marks the commit that begins the list; it may have groups, too.
_FIRST = ".first.json"
_NAME = re.compile(r"\d{8}-[0-9a-f]{16}(\.groups|\.first)?\.json")


# The runs of each group.
Groups = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TableFile:
    """Rows of a table. The path is relative to the folder of the tables: table, keys, content."""

    path: str
    sha256: str
    # Tells files with different columns apart.
    columns: str

    @property
    def table(self) -> str:
        return self.path.partition("/")[0]

    @property
    def part(self) -> str:
        """What has one file only: a table, values of its keys, and a number if those have several files."""
        return self.path.rpartition("/")[0]

    @property
    def keys(self) -> dict[str, str]:
        return dict(key.split("=", 1) for key in self.part.split("/")[1:] if "=" in key)

    @property
    def run_id(self) -> str | None:
        return self.keys.get(RUN_ID.name)

    @property
    def group(self) -> str | None:
        return self.keys.get(GROUP)

    def is_whole(self, tables: Path) -> bool:
        try:
            return sha256_of_file(tables / self.path) == self.sha256
        except OSError:
            return False


@dataclass(frozen=True)
class Commit:
    """Files that appear together, in place of all earlier files of some runs and of the same parts."""

    name: str
    runs: tuple[str, ...]
    files: tuple[TableFile, ...]
    # The runs in each group from now on.
    groups: Groups = field(default_factory=dict)
    # The name of the commit before it; of the first one it is empty.
    after: str = ""

    @property
    def all_runs(self) -> set[str]:
        """The runs that it replaces, and those of its files."""
        return {*self.runs, *(file.run_id for file in self.files if file.run_id is not None)}

    @property
    def changed_runs(self) -> set[str]:
        """The runs whose rows may have changed: merging changes none."""
        return {*self.runs}.difference(*self.groups.values())


# Gets the runs that are left in groups; returns the files of those groups, and the runs in them.
Rewrite = Callable[[Groups], tuple[Sequence[TableFile], Groups]]


def add_commit(
    tables: Path,
    files: Sequence[TableFile],
    runs: Sequence[str],
    rewrite: Rewrite | None = None,
) -> None:
    """Adds files, in place of all earlier files of these runs.

    `rewrite` gets the runs that are left in groups that lose some by this; it returns the files of those
    groups, and the runs in them. A group without runs no longer exists.
    """
    with FileLock(tables.parent / "commit.lock"):
        names = _names(tables)
        left = {
            group: tuple(run for run in members if run not in runs)
            for group, members in _groups_of(tables, names).items()
            if not {*members}.isdisjoint(runs)
        }
        again, kept = rewrite(left) if rewrite and left else ((), left)
        # Others went with them: their group was damaged.
        lost = sorted({run for group, members in left.items() for run in members if run not in kept[group]})
        _append(tables, (names or [""])[-1], [*files, *again], [*runs, *lost], kept)


def add_group(
    tables: Path,
    files: Sequence[TableFile],
    group: str,
    runs: Sequence[str],
    replaced: Sequence[str],
    after: str,
) -> bool:
    """Replaces each run's own files, or those of other groups, by files of many runs, unless a run changed
    after that commit."""
    with FileLock(tables.parent / "commit.lock"):
        since = commits_after(tables, after)
        if since is None or not {*runs}.isdisjoint(run for commit in since for run in commit.all_runs):
            return False
        groups = {group: tuple(runs), **dict.fromkeys(replaced, ())}
        _append(tables, since[-1].name if since else after, files, runs, groups)
        return True


def begin_anew(tables: Path, files: Sequence[TableFile], groups: Groups) -> list[Commit]:
    """Begins a new list with these files; returns the commits of the one before, which count no more."""
    with FileLock(tables.parent / "commit.lock"):
        replaced = commits_after(tables, None) or []
        _append(tables, (_all_names(tables) or [""])[-1], files, [], groups, is_first=True)
        return replaced


def forget_before(tables: Path) -> None:
    """Removes the commits of lists that were replaced, once nobody reads them."""
    for name in {*_all_names(tables)}.difference(_names(tables)):
        (tables / COMMITS / name).unlink(missing_ok=True)


def _append(
    tables: Path,
    last: str,
    files: Sequence[TableFile],
    runs: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    is_first: bool = False,
) -> None:
    number = int(last.partition("-")[0] or 0) + 1
    content: dict[str, Any] = {
        "after": "" if is_first else last,
        "runs": list(runs),
        "files": [asdict(file) for file in files],
    }
    if groups:
        content["groups"] = {group: list(members) for group, members in groups.items()}
    text = json.dumps(content, indent=1) + "\n"
    kind = _FIRST if is_first else _OF_GROUPS if groups else ".json"
    name = f"{number:08d}-{sha256_of_text(text)[:16]}{kind}"
    write_text_atomically(tables / COMMITS / name, text)


def commits_after(tables: Path, last: str | None) -> list[Commit] | None:
    """The commits after `last`, or all; None if `last` is not among them.

    A damaged one adds nothing: its runs are in no table, as if they had never been added.
    """
    names = _names(tables)
    if last is not None:
        if last not in names:
            return None
        names = names[names.index(last) + 1 :]
    return [_read(tables, name) or Commit(name, (), ()) for name in names]


def last_commit(tables: Path) -> str:
    return (_names(tables) or [""])[-1]


def damaged_commits(tables: Path) -> list[str]:
    return [name for name in _names(tables) if _read(tables, name) is None]


def out_of_order(tables: Path) -> list[Commit]:
    """Commits that were not written after the one before them: others are missing, or do not belong here."""
    found = ((before, _read(tables, name)) for before, name in pairwise(["", *_names(tables)]))
    return [commit for before, commit in found if commit is not None and commit.after != before]


def not_commits(tables: Path) -> list[Path]:
    """Files among the commits that are none."""
    visible = sorted((tables / COMMITS).glob("[!.]*.json"))
    return [path for path in visible if not _NAME.fullmatch(path.name)]


def groups_now(tables: Path) -> dict[str, tuple[str, ...]]:
    """The runs of each group."""
    return _groups_of(tables, _names(tables))


def _groups_of(tables: Path, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name.endswith((_OF_GROUPS, _FIRST)):
            groups |= (_read(tables, name) or Commit(name, (), ())).groups
    return groups


def require_commits(tables: Path) -> None:
    """Refuses tables that an earlier release wrote: their files are listed nowhere."""
    if (tables / COMMITS).is_dir():
        return
    if (tables / "runs").is_dir():
        raise WarehouseError(
            f"The tables in {tables} were written by an earlier release.",
            "Run `sme2 warehouse rebuild`: it makes them again from the run folders.",
        )
    # Made before the first file: files without this folder are those of an earlier release.
    (tables / COMMITS).mkdir(parents=True, exist_ok=True)


def _names(tables: Path) -> list[str]:
    """The commits of the list, in order."""
    names = _all_names(tables)
    first = next((at for at in reversed(range(len(names))) if names[at].endswith(_FIRST)), 0)
    return names[first:]


def _all_names(tables: Path) -> list[str]:
    """With those of the lists before."""
    try:
        return sorted(entry.name for entry in os.scandir(tables / COMMITS) if _NAME.fullmatch(entry.name))
    except FileNotFoundError:
        return []


def _read(tables: Path, name: str) -> Commit | None:
    """None if the content is not what the name says."""
    try:
        text = (tables / COMMITS / name).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    if sha256_of_text(text)[:16] != name.partition("-")[2].partition(".")[0]:
        return None
    content = json.loads(text)
    groups = {group: tuple(runs) for group, runs in content.get("groups", {}).items()}
    files = tuple(TableFile(**file) for file in content["files"])
    return Commit(name, tuple(content["runs"]), files, groups, content["after"])


class Listing:
    """The files that are left after a number of commits, one for each part."""

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
        gone = {group for group, runs in commit.groups.items() if not runs}
        for part in [part for part, file in self.files.items() if gone and file.group in gone]:
            del self.files[part]

    def drop(self, run: str) -> None:
        """Drops the files with the rows of this run alone."""
        for part in self._parts_of_run.pop(run, ()):
            self.files.pop(part, None)

    def _put(self, file: TableFile) -> None:
        self.files[file.part] = file
        if file.run_id is not None:
            self._parts_of_run[file.run_id].add(file.part)


def files_now(tables: Path) -> list[TableFile]:
    """The current files of the tables."""
    listing = Listing()
    for commit in commits_after(tables, None) or []:
        listing.apply(commit)
    return list(listing.files.values())
