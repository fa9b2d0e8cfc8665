"""The run folder: the one way to read what a run left behind."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sme2_assets.errors import EvidenceError
from sme2_assets.etdump import EventKind, Events, read_etdump, read_etdump_in_parts
from sme2_assets.evidence.arms import ARMS_FILE, ArmsNumerics
from sme2_assets.evidence.delegation import DELEGATION_FILE, DelegationReport
from sme2_assets.evidence.foreign import FOREIGN_FILE, ForeignStatement
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest, Process
from sme2_assets.evidence.operators import OPERATORS_FILE, ProgramOperators
from sme2_assets.evidence.regular import DAMAGED, sha256_of
from sme2_assets.evidence.result import RESULT_FILE, TRACED_PASSES, RunnerResult
from sme2_assets.evidence.roofs import ROOFS_FILE, Roof, Roofs
from sme2_assets.evidence.samples import SAMPLES_FILE, Samples
from sme2_assets.evidence.work import WORK_FILE, WorkFile
from sme2_assets.store import fsync_all, sha256_of_file

TRACE_FILE = "trace.etdump"
LOG_FILE = "runner.log"
# What a process of each pass must have left for its rows to be trusted.
FILES_OF_PASS = {
    "latency": (RESULT_FILE,),
    "etdump": (RESULT_FILE, TRACE_FILE),
    "kernels": (RESULT_FILE, TRACE_FILE, SAMPLES_FILE),
    "work": (RESULT_FILE, TRACE_FILE, WORK_FILE),
}
# After this time, a hidden folder with a manifest is nobody's who still works on it.
_OLD_S = 3600


@dataclass(frozen=True)
class RunProcess:
    """What one runner process left."""

    folder: Path
    facts: Process

    @cached_property
    def result(self) -> RunnerResult:
        return RunnerResult.read(self.folder / RESULT_FILE)

    @cached_property
    def events(self) -> Events:
        """The trace, which must contain every inference that the runner traced."""
        [events] = self._complete([read_etdump(self.folder / TRACE_FILE)])
        return events

    def parts_of_trace(self) -> Iterator[Events]:
        """The same a few inferences at a time, for traces that are too long for the memory."""
        return self._complete(read_etdump_in_parts(self.folder / TRACE_FILE))

    def _complete(self, parts: Iterable[Events]) -> Iterator[Events]:
        traced = 0
        for events in parts:
            traced += int(np.count_nonzero(events.kind == EventKind.METHOD_EXECUTE))
            yield events
        made = self.result.traced_warmup + len(self.result.iteration_ns)
        if traced != made:
            raise EvidenceError(
                f"{self.folder / TRACE_FILE} holds {traced} inferences, the runner traced {made}.",
                "The trace is incomplete: measure again, with fewer iterations if it happens again.",
            )

    @cached_property
    def samples(self) -> Samples:
        return Samples.read(self.folder / SAMPLES_FILE)

    @cached_property
    def work(self) -> WorkFile:
        return WorkFile.read(self.folder / WORK_FILE)

    @property
    def log(self) -> str:
        return (self.folder / LOG_FILE).read_text(errors="replace")

    @property
    def is_traced(self) -> bool:
        return self.facts.pass_kind in TRACED_PASSES


@dataclass(frozen=True)
class RunFolder:
    """The folder of a profile run. `open` reads only its manifest; `verified` checks the other files too."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        folder = cls(path, Manifest.read(path / MANIFEST_FILE))
        _require_name(path, folder.run_id)
        return folder

    @classmethod
    def verified(cls, path: Path) -> RunFolder:
        """The folder, if every file in it is the one that was measured."""
        folder = cls.open(path)
        info = folder.manifest.info
        for process in info.processes:
            for name in FILES_OF_PASS[process.pass_kind]:
                if f"{process.directory}/{name}" not in info.file_sha256:
                    raise EvidenceError(
                        f"The manifest of {path} does not vouch for {process.directory}/{name}.", DAMAGED
                    )
        _verify_files(path, info.file_sha256)
        return folder

    @property
    def run_id(self) -> str:
        return self.manifest.run_id

    @property
    def is_slowed(self) -> bool:
        """Slowed down on purpose, to test the measurement: it does not measure the model."""
        return any("--slowdown-percent" in process.command for process in self.manifest.info.processes)

    def processes(self, *pass_kinds: str) -> Iterator[RunProcess]:
        """In the order in which they ran; those of the given passes, or all."""
        for process in self.manifest.info.processes:
            if not pass_kinds or process.pass_kind in pass_kinds:
                yield RunProcess(self.path / process.directory, process)

    def operators(self) -> ProgramOperators | None:
        """None if the model came without them."""
        path = self.path / OPERATORS_FILE
        return ProgramOperators.read(path) if path.is_file() else None

    def delegation(self) -> DelegationReport | None:
        path = self.path / DELEGATION_FILE
        return DelegationReport.read(path) if path.is_file() else None

    def arms(self) -> ArmsNumerics | None:
        """How the arms compared; None for a single arm, and for runs from before arms had bounds."""
        path = self.path / ARMS_FILE
        return ArmsNumerics.read(path) if path.is_file() else None

    def roof(self) -> Roof | None:
        """What plain code reached on the device with the run's threads; None where it was not measured."""
        path = self.path / ROOFS_FILE
        return Roofs.read(path).roofs[-1] if path.is_file() else None


@dataclass(frozen=True)
class ForeignFolder:
    """The folder of a trace that another tool made."""

    path: Path
    statement: ForeignStatement

    @classmethod
    def verified(cls, path: Path) -> ForeignFolder:
        statement = ForeignStatement.read(path / FOREIGN_FILE)
        _require_name(path, statement.run_id)
        _verify_files(path, statement.file_sha256)
        return cls(path, statement)

    @property
    def run_id(self) -> str:
        return self.statement.run_id

    @property
    def trace(self) -> Path:
        return self.path / TRACE_FILE

    @property
    def log(self) -> str:
        """Empty if there was none next to the trace."""
        path = self.path / LOG_FILE
        return path.read_text(errors="replace") if path.is_file() else ""


def open_verified(path: Path) -> RunFolder | ForeignFolder:
    """The folder of a run of either kind."""
    if (path / FOREIGN_FILE).is_file():
        return ForeignFolder.verified(path)
    return RunFolder.verified(path)


def finish_sessions(runs: Path) -> dict[str, EvidenceError]:
    """Gives the folders of complete sessions their names, if the process was killed before it did.

    Returns why others that were left behind with a manifest never get theirs, by the names they have.
    """
    waiting: dict[str, list[tuple[Path, Manifest]]] = defaultdict(list)
    refused = {}
    for path in runs.glob(".*"):
        try:
            manifest = _manifest_of_hidden(path)
        except EvidenceError as error:
            # Not a run folder, or one that is being filled or will never be finished.
            if _has_old_manifest(path):
                refused[path.name] = error
            continue
        waiting[manifest.session_id].append((path, manifest))
    for session_id, folders in waiting.items():
        named = [path for path in runs.glob(f"{session_id}-*") if path.is_dir()]
        if len(folders) + len(named) < folders[0][1].arms:
            continue
        for path, manifest in folders:
            # The process that began it may be alive after all, and faster.
            with suppress(OSError):
                fsync_all(path)
                path.rename(runs / manifest.run_id)
    return refused


def arms_of_session(path: Path) -> list[Path]:
    """The run folder and those of the other arms measured with it: none counts alone."""
    manifest = RunFolder.open(path).manifest
    if manifest.arms == 1:
        return [path]
    beside = (other for other in path.parent.glob(f"{manifest.session_id}-*") if other.is_dir())
    found = sorted(
        other for other in beside if RunFolder.open(other).manifest.session_id == manifest.session_id
    )
    if len(found) != manifest.arms:
        raise EvidenceError(
            f"{path} is one of {manifest.arms} arms of a session, and the folder of another one is missing.",
            "Restore that folder from a copy, or remove this one too: a part of a session says nothing.",
        )
    return found


def identity_of(path: Path) -> str | None:
    """The hash of the file that vouches for all others in a run folder; None for any other folder."""
    for name in (MANIFEST_FILE, FOREIGN_FILE):
        if (path / name).is_file():
            return sha256_of_file(path / name)
    return None


def run_folders(runs: Path) -> list[Path]:
    """All finished folders below `runs`, oldest first: names begin with the time."""
    if not runs.is_dir():
        return []
    # The name of a folder that is being filled begins with a dot.
    return sorted(path for path in runs.iterdir() if path.is_dir() and not path.name.startswith("."))


def _manifest_of_hidden(path: Path) -> Manifest:
    """The manifest of a folder that is complete but for its name."""
    manifest = Manifest.read(path / MANIFEST_FILE)
    # As `new_directories` names it: whatever else says that it is a run was put there by somebody.
    if path.is_symlink() or not path.name.startswith(f".{manifest.run_id}."):
        raise EvidenceError(
            f"{path} says that it is the unfinished run {manifest.run_id}, and does not have its name.",
            "Find out where it comes from; if nobody knows, remove it.",
        )
    _verify_files(path, manifest.info.file_sha256)
    return manifest


def _has_old_manifest(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - (path / MANIFEST_FILE).lstat().st_mtime > _OLD_S
    return False


def _require_name(path: Path, run_id: str) -> None:
    if run_id != path.name:
        raise EvidenceError(f"{path} holds the run {run_id}.", f"Give the folder its name back: {run_id}.")


def _verify_files(folder: Path, file_sha256: Mapping[str, str]) -> None:
    for name, expected in file_sha256.items():
        if sha256_of(folder, name) != expected:
            raise EvidenceError(
                f"{folder / name} is not the file that was measured: its content changed.", DAMAGED
            )
