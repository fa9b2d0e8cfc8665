"""The folder of one session on a device: files go into a store under their hash, so nothing is sent twice."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.store import sha256_of_file
from sme2_assets.targets.base import Completed, Program, Workspace
from sme2_assets.targets.remote.connection import FULL_REMEDY, Connection, Held, Script, shell_program
from sme2_assets.toolchain.elf import MACHINES, machine_of

Log = Callable[[str], None]

#: How much a device must keep free beyond what is sent to it: results are written there too.
SPARE_BYTES = 64 * 2**20
#: How long the end of a session may take to be noticed after a failure.
_NOTICE_SECONDS = 0.5
#: How long a step on the device other than a measurement may take.
SETUP_SECONDS = 120.0

_STORED = shell_program("stored")
_LINK = shell_program("link")
_RUN = shell_program("run")


def root_folder(variable: str, default: str) -> str:
    """The folder on a device that holds everything."""
    named = os.environ.get(variable) or default
    path = PurePosixPath(named)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise Sme2Error(f"{variable} is {named!r}.", "Give an absolute path of a folder on the device.")
    return str(path)


@dataclass(frozen=True)
class _Sent:
    """A local file and the hash of its content."""

    path: Path
    sha256: str
    size_bytes: int


class RemoteWorkspace(Workspace):
    """The folder of one session on a device, whose programs are for `arch`."""

    def __init__(
        self, device: Connection, held: Held, device_id: str, root: str, name: str, arch: str, log: Log
    ) -> None:
        self.device = device
        self.held = held
        self.device_id = device_id
        self.arch = arch
        self.root = root
        self.name = name
        self.folder = f"{root}/sessions/{name}"
        self.wrapper: list[str] = []
        self.bytes_pushed = 0
        self._log = log
        # What is known to be in the store with the right content.
        self._there: set[str] = set()
        self._hashes: dict[tuple[str, int, int], str] = {}

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Rejects anything done while the device was not held.

        A transport may reconnect by itself, and others may have measured in between.
        """
        try:
            yield
        except RunnerError as error:
            # A failed command may be noticed before the end of the session that caused it.
            if isinstance(error, ConnectionLost) or not self.held.ended(within_s=_NOTICE_SECONDS):
                raise
            raise self._lost() from error
        if self.held.ended(within_s=0):
            raise self._lost()

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(
            f"The session on {self.device.name} was lost, and its files with it.", self.device.lost_remedy()
        )

    def install(self, program: Program) -> list[str]:
        with self._holding():
            return self._install(program)

    def _install(self, program: Program) -> list[str]:
        files = {name: self._hashed(program.folder / _inside(name)) for name in program.files}
        for part in program.start:
            if part.startswith("./") and part[2:] in files:
                _require_machine(files[part[2:]].path, self.arch)
        listing = "".join(f"{sent.sha256} {name}\n" for name, sent in sorted(files.items()))
        folder = f"{self.root}/programs/{hashlib.sha256(listing.encode()).hexdigest()}"
        if folder not in self._there:
            self._send(list(files.values()))
            pairs = [word for name, sent in files.items() for word in (name, sent.sha256)]
            self.device.script(_LINK, self.root, folder, *pairs, timeout_s=SETUP_SECONDS)
            self._there.add(folder)
        return program.command_in(folder)

    def put(self, local: Path) -> str:
        sent = self._hashed(local)
        with self._holding():
            self._send([sent])
        return f"{self.root}/store/{sent.sha256}"

    def path(self, name: str) -> str:
        return f"{self.folder}/files/{_inside(name)}"

    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Completed:
        words = [*self.wrapper, *command]
        with self._holding():
            script = Script(_RUN, (f"{self.folder}/files", *words))
            done = self.device.shell(script, env=env, timeout_s=timeout_s)
            if done.returncode != 0 and self.held.ended(within_s=_NOTICE_SECONDS):
                raise self._lost()
        return replace(done, command=words)

    def get(self, name: str, local: Path) -> None:
        remote = self.path(name)
        local.parent.mkdir(parents=True, exist_ok=True)
        # Under its final name only when it is complete.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=local.parent) as staging:
            try:
                with self._holding():
                    pulled = self.device.pull(remote, Path(staging))
            except ConnectionLost:
                raise
            except RunnerError as error:
                if "No such file" not in error.what:
                    raise
                raise RunnerError(
                    f"The runner succeeded but did not write {name}.", "Report this as a defect."
                ) from error
            shutil.move(pulled, local)
        self.device.shell(["rm", "-rf", remote], timeout_s=SETUP_SECONDS)

    def _hashed(self, path: Path) -> _Sent:
        try:
            state = path.stat()
            key = (str(path.absolute()), state.st_size, state.st_mtime_ns)
            if key not in self._hashes:
                self._hashes[key] = sha256_of_file(path)
        except OSError as error:
            raise RunnerError(
                f"{path} cannot be read: {error.strerror}.", "Materialise what it belongs to again."
            ) from error
        return _Sent(path, self._hashes[key], state.st_size)

    def _send(self, files: Sequence[_Sent]) -> None:
        """Sends what the store does not have; anything it has was checked by its hash in this session."""
        asked = {sent.sha256: sent for sent in files if sent.sha256 not in self._there}
        if not asked:
            return
        missing, df = self._not_stored(list(asked.values()))
        if missing:
            self._require_space(sum(sent.size_bytes for sent in missing), df)
            self._push(missing)
        self._there.update(asked)

    def _not_stored(self, files: Sequence[_Sent]) -> tuple[list[_Sent], str]:
        """Those that the store does not have, with what has arrived since; and what `df` says there."""
        shas = [sent.sha256 for sent in files]
        answer = self.device.script(_STORED, self.root, self.folder, *shas, timeout_s=SETUP_SECONDS)
        missing = set(re.findall(r"^missing ([0-9a-f]{64})$", answer, re.MULTILINE))
        return [sent for sent in files if sent.sha256 in missing], answer

    def _push(self, files: Sequence[_Sent]) -> None:
        started = time.monotonic()
        for sent in files:
            self.device.push(sent.path, f"{self.folder}/{sent.sha256}")
        if damaged := self._not_stored(files)[0]:
            names = ", ".join(sent.path.name for sent in damaged)
            raise RunnerError(
                f"{names} did not arrive on {self.device.name} as sent, or changed while it was sent.",
                "Measure again; if it keeps happening, try another cable, port or network.",
            )
        pushed = sum(sent.size_bytes for sent in files)
        self.bytes_pushed += pushed
        seconds = time.monotonic() - started
        self._log(f"{self.device_id}: pushed {len(files)} files, {pushed / 1e6:.1f} MB in {seconds:.1f} s")

    def _require_space(self, needed: int, df: str) -> None:
        free = free_bytes(df)
        if free is not None and free < needed + SPARE_BYTES:
            raise TargetUnavailable(
                f"{self.device.name} has {free / 1e6:.0f} MB free at {self.root}; "
                f"{needed / 1e6:.0f} MB have to be sent, and {SPARE_BYTES / 1e6:.0f} MB kept free.",
                FULL_REMEDY,
            )


def free_bytes(df: str) -> int | None:
    """What `df -Pk` says about the last file system it lists."""
    found = re.findall(r"\s(\d+)\s+(\d+)\s+(-?\d+)\s+(?:\d+%|-)\s", df)
    return max(0, int(found[-1][2])) * 1024 if found else None


def _inside(name: str) -> str:
    """The name, if it stays inside the folder it is used in; otherwise an error."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or path == PurePosixPath(".") or "\0" in name:
        raise Sme2Error(f"{name!r} does not name a file inside a session's folder.", "Choose a plain name.")
    return name


def _require_machine(program: Path, arch: str) -> None:
    """A program for another CPU would fail on the device with an obscure error."""
    machine = machine_of(program)
    if machine not in (None, MACHINES.get(arch)):
        raise RunnerError(
            f"{program.name} is not a program for {arch} (ELF machine {machine}).",
            "Measure with the runner of the wheel, which is made for the device's CPU on every host.",
        )
