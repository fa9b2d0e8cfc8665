"""Evidence that several machines share: sessions in an object store, and an append-only log of them.

A store is any place that fsspec can reach: a bucket, or, at its simplest, a folder. The run folders of a
session are uploaded first, packed. Then an entry that names them with their hashes is added to the log: it
appears as a whole, under a number that no other entry has, or not at all. Only what an entry names is read,
so a machine that dies during an upload leaves no half session. Every machine that wants a session fetches it
once, verifies it, and renames it into place, both arms together. A session that was uploaded twice, because a
machine died before it had noted the first time, is still fetched only once.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from filelock import FileLock

from sme2_assets.archives import BadArchive, TooLarge, tar_members, unpack
from sme2_assets.errors import EvidenceError, Sme2Error
from sme2_assets.evidence.documents import Document, Name, Part, PathInside, Sequence, Text
from sme2_assets.evidence.folder import (
    RunFolder,
    arms_of_session,
    finish_sessions,
    identity_of,
    open_verified,
    run_folders,
)
from sme2_assets.evidence.foreign import FOREIGN_FILE
from sme2_assets.evidence.regular import content_of, files_in, opened
from sme2_assets.evidence.sequence import count_from
from sme2_assets.store import (
    Store,
    fsync,
    new_directories,
    safe_name,
    sha256_of_file,
    sha256_of_text,
    write_text_atomically,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Log = Callable[[str], None]

VARIABLE = "SME2_STORE"
# Notes kept here about a run: it is in the store, or does not belong there; and it was handed on to the code
# that makes its rows, so that a run that is removed on purpose does not come back.
_THERE, _HANDED_ON = "there", "handed_on"
_DAMAGED = "Restore the object from a copy, or measure again."
# In the store, and noted here: tells it from another one that is later at the same address.
_STORE_ID = "store_id"
_ENTRY = re.compile(r"(\d{10})\.json")
_LARGEST_OBJECT_BYTES = 16 << 20


class SharedRun(Part):
    """A run folder as one object: a request and a name for each of its many small files would cost more."""

    archive: PathInside
    sha256: Text
    # The hash of the file that vouches for its other files (identity_of).
    evidence: Text


class SharedSession(Document):
    """An entry of the log."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = _DAMAGED

    # The largest session number (sequence.py) in this entry and all before it.
    sequence: Sequence
    # By run id: both arms of a pair.
    runs: dict[Name, SharedRun]


@dataclass
class Pulled:
    """One run folder of each session that was fetched, and the reasons for those that could not be."""

    folders: list[Path] = field(default_factory=list)
    refused: dict[str, Sme2Error] = field(default_factory=dict)


class SharedStore:
    """The store, and what this data folder knows about it."""

    def __init__(self, url: str, here: Path) -> None:
        self.url, self.here = url.rstrip("/"), here
        try:
            import fsspec

            self.fs: AbstractFileSystem
            self.fs, self.root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise Sme2Error(
                f"{VARIABLE} is {url!r}, which cannot be opened: {error}.",
                "Give an address such as s3://bucket/lab or file:///srv/lab, and install what reaches it: "
                "pip install 'sme2-assets[deploy]'.",
            ) from error

    @classmethod
    def of(cls, store: Store) -> SharedStore | None:
        """The store that `$SME2_STORE` names; None if this data folder shares nothing."""
        url = os.environ.get(VARIABLE)
        if not url:
            return None
        return cls(url, store.root / "shared" / sha256_of_text(url.rstrip("/"))[:16])

    @property
    def is_folder(self) -> bool:
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self.fs, LocalFileSystem)

    # The log

    def newest(self) -> int:
        """The largest number of all sessions there; 0 if there are none."""
        with self.reached():
            self._recognise()
            return self._sequence_before(self._end())

    def _end(self) -> int:
        """The number after that of the last entry.

        An entry that was lost is not the end: its number is not given away, because machines that have read
        that far would never see the new entry.
        """
        last = max([*self._numbers(), self._known()])
        write_text_atomically(self.here / "end", str(last))
        return last + 1

    def _numbers(self) -> list[int]:
        """The numbers of the entries that are there, in order."""
        names = self.fs.find(f"{self.root}/sessions")
        matches = (_ENTRY.fullmatch(name.rpartition("/")[2]) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def _name(self, number: int) -> str:
        return f"{self.root}/sessions/{number:010d}.json"

    def _entry(self, number: int) -> SharedSession:
        try:
            raw = self.read(self._name(number))
        except FileNotFoundError:
            raise EvidenceError(
                f"{self._name(number)} is missing: nobody can find the session that it named.",
                "Restore the object from a copy; or remove shared/ from the data folder of the machine that "
                "measured the session, and run `sme2 warehouse sync` there: it gives all its sessions again.",
            ) from None
        return SharedSession.parse(raw, self._name(number))

    def _sequence_before(self, number: int) -> int:
        if number <= 1:
            return 0
        with contextlib.suppress(EvidenceError):
            return self._entry(number - 1).sequence
        for earlier in reversed(self._numbers()):
            if earlier < number:
                with contextlib.suppress(EvidenceError):
                    return self._entry(earlier).sequence
        return 0

    def _append(self, number: int, sequence: int, runs: Mapping[str, SharedRun]) -> int:
        """Adds an entry under the first free number from `number` on; returns the number after it."""
        while True:
            newest = max(sequence, self._sequence_before(number))
            entry = SharedSession(sequence=newest, runs=dict(runs))
            try:
                self.create(self._name(number), entry.to_json().encode())
            except FileExistsError:
                number += 1
            else:
                write_text_atomically(self.here / "end", str(number))
                return number + 1

    def create(self, name: str, data: bytes) -> None:
        """Creates an object as a whole under a free name; FileExistsError if the name is taken."""
        if not self.is_folder:
            self.fs.pipe_file(name, data, mode="create")
            return
        # An opened file has its name before its content; a link gets both at once.
        path = Path(name)
        staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        write_text_atomically(staged, data.decode())
        try:
            os.link(staged, path)
        finally:
            staged.unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        """A small object; FileNotFoundError if there is none, EvidenceError for what cannot be one."""
        if self.is_folder:
            try:
                return content_of(Path(name), _LARGEST_OBJECT_BYTES, _DAMAGED)
            except PermissionError as error:
                raise EvidenceError(f"You may not read {name}.", "Check who owns it.") from error
        try:
            content: bytes = self.fs.cat_file(name)
        except IsADirectoryError as error:
            raise EvidenceError(f"{name} is not an object.", _DAMAGED) from error
        return content

    def put(self, source: Path, name: str) -> None:
        """Uploads a file: under another name first, if the store shows half-written files."""
        target = f"{self.root}/{name}"
        if not self.is_folder:
            self.fs.put_file(str(source), target)
            return
        staged = str(Path(target).with_name(f".{Path(target).name}.{uuid.uuid4().hex}"))
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        self.fs.put_file(str(source), staged)
        fsync(Path(staged))
        Path(staged).replace(target)

    @contextlib.contextmanager
    def reached(self) -> Iterator[None]:
        """Turns anything that the store's client raises into an error that names the store."""
        try:
            yield
        except Sme2Error:
            raise
        except Exception as error:
            raise Sme2Error(
                f"The shared store {self.url} does not answer as it should: {type(error).__name__}: {error}",
                "Check the address, the network and the credentials; nothing is lost, and "
                "`sme2 warehouse sync` goes on from here.",
            ) from error

    # What this data folder knows

    def _state(self) -> tuple[int, list[int]]:
        """How far the log was read, and the entries before that which are to be tried again.

        A note that cannot be read counts as absent: the log is read again, and nothing is taken twice.
        """
        try:
            state = json.loads((self.here / "state.json").read_text())
            return int(state["position"]), [int(number) for number in state["again"]]
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return 0, []

    def _note_state(self, position: int, again: Iterable[int]) -> None:
        state = {"position": position, "again": list(again)}
        write_text_atomically(self.here / "state.json", json.dumps(state))

    def _known(self) -> int:
        """The largest number of an entry that was seen from here; 0 if none was."""
        position, _ = self._state()
        try:
            return max(position, int((self.here / "end").read_text()))
        except (FileNotFoundError, ValueError):
            return position

    def _noted_id(self) -> str | None:
        note = self.here / _STORE_ID
        return (note.read_text(errors="replace").strip() or None) if note.is_file() else None

    def _id_there(self) -> str | None:
        try:
            raw = self.read(f"{self.root}/{_STORE_ID}")
        except FileNotFoundError:
            return None
        return raw.decode(errors="replace").strip() or None

    def _is_another(self, there: str | None) -> bool:
        """Whether the store, whose id is `there`, is not the one that the notes here are about."""
        noted = self._noted_id()
        if noted is not None and there is not None:
            return noted != there
        # Stores of earlier releases have no id, and an id can be lost. An emptied store has lost its log too.
        known = self._known()
        return known > 0 and not self.fs.exists(self._name(known))

    def _recognise(self) -> str | None:
        """The id of the store. If it is another store than before, all notes about that one are dropped."""
        with self._one_at_a_time("recognise"):
            there = self._id_there()
            if self._is_another(there):
                # Folders first, and the files that tell one store from another last: whoever is killed here
                # starts over.
                notes = (path for path in self.here.iterdir() if path.suffix != ".lock")
                for path in sorted(notes, key=lambda path: (not path.is_dir(), path.name)):
                    if path.is_dir():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
            if there is not None and there != self._noted_id():
                write_text_atomically(self.here / _STORE_ID, there)
            return there

    def _identify(self) -> None:
        """Gives an id to a store that has none."""
        with contextlib.suppress(FileExistsError):
            self.create(f"{self.root}/{_STORE_ID}", (self._noted_id() or uuid.uuid4().hex).encode())
        self._recognise()

    def _has_noted(self, note: str, run_id: str) -> bool:
        return (self.here / note / safe_name(run_id)).exists()

    def _note(self, note: str, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            (self.here / note).mkdir(parents=True, exist_ok=True)
            (self.here / note / safe_name(run_id)).touch()

    # Sessions

    def push(self, runs: Path, log: Log) -> list[str]:
        """Uploads every session that is complete here and not there yet; returns the ids of its runs.

        That includes sessions whose process was killed before the upload. Damaged ones stay here.
        """
        pushed: list[str] = []
        with self._one_at_a_time("push"), self.reached():
            has_id, free = self._recognise() is not None, 0
            for what, why in finish_sessions(runs).items():
                log(f"{what} is not shared: {why}")
            for path in run_folders(runs):
                if self._has_noted(_THERE, path.name):
                    continue
                try:
                    arms = self._arms(path)
                    for arm in arms:
                        open_verified(arm)
                        files_in(arm)
                except EvidenceError as error:
                    log(f"{path.name} is not shared: {error}")
                    continue
                names = [arm.name for arm in arms]
                if arms:
                    log(f"sharing {', '.join(names)}")
                    packed = {arm.name: self._put_run(arm) for arm in arms}
                    if not has_id:
                        # Not before: whoever has nothing to give may not be allowed to write.
                        self._identify()
                        has_id = True
                    free = self._append(free or self._end(), _sequence_of(arms[0]), packed)
                    pushed += names
                for note in (_HANDED_ON, _THERE):
                    self._note(note, names or [path.name])
        return pushed

    def _put_run(self, folder: Path) -> SharedRun:
        with tempfile.TemporaryDirectory() as temporary:
            packed = Path(temporary) / "run"
            _pack(folder, packed)
            sha256 = sha256_of_file(packed)
            # By content: a different version of the same run is another object.
            name = f"runs/{folder.name}-{sha256[:16]}.tar.gz"
            self.put(packed, name)
        return SharedRun(archive=name, sha256=sha256, evidence=str(identity_of(folder)))

    def _arms(self, path: Path) -> list[Path]:
        """The folders of a session; none if it does not measure a model."""
        if (path / FOREIGN_FILE).is_file():
            return [path]
        return [] if RunFolder.open(path).is_slowed else arms_of_session(path)

    def pull(self, runs: Path, log: Log, take: Callable[[Path], object] = lambda folder: None) -> Pulled:
        """Fetches every session that is there and was never here, and passes one folder of each to `take`.

        A session that cannot be fetched or taken is tried again the next time, and so is one that was not
        handed on because this process was killed.
        """
        done = Pulled()
        with self._one_at_a_time("pull"), self.reached():
            self._recognise()
            position, again_before = self._state()
            end = self._end()
            # The last one too: if it was lost, somebody who had never seen it may have reused its number.
            new = range(max(position, 1), end)
            again: list[int] = []
            for number in (*(number for number in again_before if number < new.start), *new):
                try:
                    entry = self._entry(number)
                    if not all(self._has_noted(_HANDED_ON, run_id) for run_id in entry.runs):
                        # Noted first, or it would be mistaken for a run measured here.
                        self._note(_THERE, entry.runs)
                        folder = self._fetched(entry, runs, log)
                        take(folder)
                        done.folders.append(folder)
                        self._note(_HANDED_ON, entry.runs)
                except Sme2Error as error:
                    done.refused[self._name(number)] = error
                    again.append(number)
                # Until all of those from before were tried again, the last note about them holds.
                if number in new:
                    self._note_state(number, again)
        return done

    def _fetched(self, entry: SharedSession, runs: Path, log: Log) -> Path:
        """One folder of a session, with all its folders in place and complete."""
        finals = [runs / safe_name(run_id) for run_id in entry.runs]
        for there in (final for final in finals if final.is_dir()):
            if identity_of(there) != entry.runs[there.name].evidence:
                raise EvidenceError(
                    f"{there} and the shared store have the same run id and different content.",
                    "One of them was changed or made up: find out which, and remove it.",
                )
        if missing := [final for final in finals if not final.is_dir()]:
            log(f"fetching {', '.join(final.name for final in missing)}")
            with new_directories(missing) as stagings:
                for staging, final in zip(stagings, missing, strict=True):
                    self._unpack(entry.runs[final.name], staging)
        return finals[0]

    def _unpack(self, run: SharedRun, folder: Path) -> None:
        with self._archive(run) as packed:
            try:
                with gzip.open(packed) as content:
                    unpack(tar_members(content), folder)
            except TooLarge as error:
                raise EvidenceError(
                    f"{run.archive} in the shared store is too large: {error}.",
                    "Make room; if no run is that large, find out who put it there.",
                ) from error
            except BadArchive as error:
                raise EvidenceError(
                    f"{run.archive} in the shared store is not the archive of a run: {error}.", _DAMAGED
                ) from error
        if identity_of(folder) != run.evidence:
            raise EvidenceError(
                f"{run.archive} in the shared store does not hold the run that its entry names.", _DAMAGED
            )

    @contextlib.contextmanager
    def _archive(self, run: SharedRun) -> Iterator[Path]:
        """The packed folder of a run, if it is what was put there."""
        with tempfile.TemporaryDirectory() as temporary:
            packed = Path(temporary) / "run"
            try:
                self.fs.get_file(f"{self.root}/{run.archive}", str(packed))
                sha256 = sha256_of_file(packed)
            except FileNotFoundError:
                raise EvidenceError(f"{run.archive} is missing from the shared store.", _DAMAGED) from None
            except (IsADirectoryError, PermissionError) as error:
                raise EvidenceError(
                    f"{run.archive!r} in the shared store cannot be read: {error}.", "Check who owns it."
                ) from error
            if sha256 != run.sha256:
                raise EvidenceError(f"{run.archive} in the shared store is not what was put there.", _DAMAGED)
            yield packed

    def damage(self, log: Log) -> Iterator[EvidenceError]:
        """What is wrong with the entries of the log, and with the runs that they name: all are read."""
        with self.reached():
            if self._is_another(self._id_there()):
                yield EvidenceError(
                    f"The shared store {self.url} was emptied or made again since it was last used.",
                    "Run `sme2 warehouse sync`: it gives every session that is here again.",
                )
                return
            end = self._end()
            for number in range(1, end):
                log(f"shared session {number} of {end - 1}")
                try:
                    entry = self._entry(number)
                except EvidenceError as error:
                    yield error
                    continue
                for run in entry.runs.values():
                    try:
                        with self._archive(run):
                            pass
                    except EvidenceError as error:
                        yield error

    def count_on(self, runs: Path) -> None:
        """Makes the next session here newer than all in the store."""
        count_from(runs, self.newest())

    @contextlib.contextmanager
    def _one_at_a_time(self, what: str) -> Iterator[None]:
        self.here.mkdir(parents=True, exist_ok=True)
        with FileLock(self.here / f"{what}.lock"):
            yield


def _pack(folder: Path, packed: Path) -> None:
    with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
        # A file that has two names is packed as two files: whoever unpacks it takes nothing else.
        archive.dereference = True
        for name in files_in(folder):
            with opened(folder, name) as file:
                archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)


def _sequence_of(folder: Path) -> int:
    if (folder / FOREIGN_FILE).is_file():
        return 0
    return RunFolder.open(folder).manifest.sequence
