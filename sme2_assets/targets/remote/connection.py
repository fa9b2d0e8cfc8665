"""The transport to one device: commands that run on it, and files that go there and back.

Belongs here: how a command is quoted, running, holding and killing commands, with a specific error for each
failure; what a kind of transport must implement for that. Does not: the kinds (android/device,
ssh/connection), what a measurement needs from a device (workspace, target).

The shell programs that run there are the files of `scripts/`. What differs from call to call is always a
positional parameter, never part of a program's text.

A transport's own exit code says too little: a broken connection can look like the end of a command. So every
remote command is wrapped by a small program that reports its process when it begins and its exit code when it
ends. Without the second report the connection was lost, whatever the transport says. The program also watches
its standard input: when that ends, because we were killed, gave up or lost the device, it kills the command.
No command keeps running on a device once nobody waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shlex
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar

from sme2_assets.archives import BadArchive, NotPlain, TooLarge, tar_members, unpack
from sme2_assets.errors import (
    ConnectionLost,
    Refused,
    RunnerError,
    Sme2Error,
    TargetUnavailable,
    disk_failure,
)
from sme2_assets.targets.base import Completed
from sme2_assets.targets.contained import Printed, printed_by, too_much_text


def shell_program(*names: str) -> str:
    """The text of `scripts/<name>.sh`; several are joined, so that the last can use the others."""
    folder = resources.files(__package__) / "scripts"
    return "".join((folder / f"{name}.sh").read_text(encoding="utf-8") for name in names)


FULL_REMEDY = "Free space on the device; `sme2 devices --clean` removes what sme2 has put there."

#: adb writes the length of a request in four hexadecimal digits.
_MAX_COMMAND_BYTES = 60_000
#: How long an abandoned command may take to end.
_KILL_SECONDS = 60.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A shell reports the death of a command by signal N as 128 + N; Linux has signals up to 64.
_SIGNALS = range(129, 128 + 65)
_REFUSALS = (
    "No such file or directory",
    "No space left on device",
    "Permission denied",
    "Read-only file system",
    "Is a directory",
    "Not a directory",
    "File name too long",
    "Disk quota exceeded",
    # What dash's own commands say when the disk is full, and what every program says when it is failing.
    "I/O error",
    "Input/output error",
)
_WATCHED = shell_program("watched")
_KILL = shell_program("processes", "kill")
_PULL = shell_program("pull")
#: How much of a line is read at once while a device is being taken, and how much a login may print there.
_LINE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16
_MOST_LOGIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Script:
    """A POSIX shell program and its positional parameters."""

    text: str
    arguments: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        return ["sh", "-c", self.text, "sme2", *self.arguments]

    def remote_command(self) -> str:
        """What the device's shell is given; `exec` makes our shell the leader of the process group."""
        remote = "exec " + quoted(self.argv())
        if len(os.fsencode(remote)) > _MAX_COMMAND_BYTES:
            raise Sme2Error(
                f"A command of {len(remote)} characters is too long to send.", "Use shorter or fewer names."
            )
        return remote


def quoted(argv: Sequence[str]) -> str:
    """The words as a POSIX shell reads them back, whatever they contain."""
    if any("\0" in word for word in argv):
        raise Sme2Error("A command line cannot contain a NUL character.", "Choose another name.")
    return shlex.join(argv)


@dataclass(frozen=True)
class Held:
    """A program on a device that runs until it is released."""

    process: subprocess.Popen[bytes]

    def ended(self, within_s: float) -> bool:
        """Whether it has ended by itself, and with it everything it held."""
        try:
            self.process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Closes its standard input and waits for it; if its device is gone, it has already ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Connection(ABC):
    """One device behind a transport. `name` is what people call it: a serial number, an address."""

    #: The variable that names the folder on the device.
    root_variable: ClassVar[str]
    name: str

    @abstractmethod
    def command(self, script: Script) -> list[str]:
        """The command on this host that runs a program on the device, with our standard streams."""

    @abstractmethod
    def push(self, local: Path, remote: str, *, timeout_s: float = 1800) -> None:
        """Copies a file to the device."""

    @abstractmethod
    def install_remedy(self) -> str:
        """How to get the transport's program."""

    @abstractmethod
    def lost_remedy(self) -> str:
        """What to do about a connection that broke."""

    def spoiled_remedy(self) -> str:
        """What to do about files that arrived with something else among them."""
        return "Measure again; if it keeps happening, try another cable, port or network."

    def refusal(self, said: str) -> Refused | None:
        """The error, if the transport's messages say that it was not let in."""
        return None

    def _not_begun(self, said: str) -> Sme2Error:
        """Why a command did not begin, judging by everything the transport said."""
        return self.refusal(said) or ConnectionLost(
            f"{self.name} could not be reached: no command has begun there ({last_words(said)}).",
            self.lost_remedy(),
        )

    def _start(self, script: Script, stderr: int) -> subprocess.Popen[bytes]:
        """Starts a program on the device, with pipes to and from it."""
        command = self.command(script)
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        except OSError as error:
            raise TargetUnavailable(
                f"{command[0]} could not be started: {error}", self.install_remedy()
            ) from error

    def shell(
        self,
        command: Sequence[str] | Script,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Completed:
        """Runs a command on the device. Death by signal N is exit code -N, as in subprocess.

        A command that outlives the time-out, or prints too much, is killed on the device: RunnerError. A lost
        connection is ConnectionLost.
        """
        words = command.argv() if isinstance(command, Script) else list(command)
        if env:
            words = ["env", *_assignments(env), *words]
        mark = f"sme2-{secrets.token_hex(8)}"
        started = time.monotonic()
        process = self._start(Script(_WATCHED, (mark, *words)), subprocess.PIPE)
        status, (out, err, excess) = _communicate(process, timeout_s)
        if excess is not None:
            self._end(mark, err)
        if excess == "text":
            raise too_much_text(f"The command on {self.name}")
        if excess == "time":
            raise RunnerError(
                f"The command on {self.name} did not end within {timeout_s:g} s and was killed: "
                f"{shlex.join(words)[:200]}",
                "Ask for fewer iterations, or raise `timeout_s` in the run configuration.",
            )
        code, out, err = self._ended(mark, status, out, err)
        return Completed(words, _signal_or_code(code), _text(out), _text(err), time.monotonic() - started)

    def script(self, text: str, *arguments: str, timeout_s: float = 60) -> str:
        """What one of our shell programs prints; RunnerError if it fails."""
        # We read what its commands say, so they say it in English.
        done = self.shell(Script(text, arguments), env={"LC_ALL": "C"}, timeout_s=timeout_s)
        if done.returncode != 0:
            raise RunnerError(
                f"A step on {self.name} failed (exit code {done.returncode}): {last_words(done.stderr)}",
                "Run `sme2 devices` to see the state of the device and its free space.",
            )
        return done.stdout

    def pull(self, remote: str, folder: Path, *, timeout_s: float = 1800) -> Path:
        """Copies a file or folder from the device into a folder here; returns where it is."""
        try:
            status, said, problem = self._unpacked(Script(_PULL, (remote,)), folder, timeout_s)
        except (OSError, TooLarge) as error:
            raise self._not_written(remote, error) from error
        if status == -signal.SIGKILL:
            raise self._too_slow(timeout_s)
        if status != 0:
            raise self._transfer_failure("could not be fetched from", remote, said)
        pulled = folder / remote.rpartition("/")[2]
        if problem is None and not pulled.exists():
            problem = BadArchive(f"it has no {pulled.name}")
        if problem is not None:
            raise self._not_unpacked(remote, problem) from problem
        return pulled

    def _unpacked(self, script: Script, folder: Path, timeout_s: float) -> tuple[int, str, BadArchive | None]:
        """Exit code and messages of a program that sends an archive, and what is wrong with what it sent."""
        problem = None
        with self._start(script, subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            timer = threading.Timer(timeout_s, process.kill)
            timer.daemon = True
            timer.start()
            try:
                try:
                    unpack(tar_members(process.stdout), folder)
                except TooLarge:
                    raise
                except BadArchive as error:
                    problem = error
                # Why it sent no archive is known at its end.
                while process.stdout.read(_PIECE_BYTES):
                    pass
                said = process.stderr.read(_PIECE_BYTES)
                process.wait()
            finally:
                timer.cancel()
                process.kill()
        return process.returncode, said.decode("utf-8", "replace"), problem

    def _not_unpacked(self, remote: str, problem: BadArchive) -> RunnerError:
        if isinstance(problem, NotPlain):
            return RunnerError(
                f"Not everything that {self.name} sent for {remote!r} is a file or folder: {problem}.",
                "Results never contain that: look at what the runner, or another program there, has written.",
            )
        return RunnerError(
            f"What {self.name} sent for {remote!r} cannot be unpacked: {problem}",
            self.spoiled_remedy(),
        )

    def _not_written(self, remote: str, error: OSError | TooLarge) -> Sme2Error:
        known = disk_failure(os.strerror(errno.ENOSPC) if isinstance(error, TooLarge) else str(error))
        why = error.strerror if isinstance(error, OSError) else error
        return Sme2Error(
            f"What {self.name} sent for {remote!r} could not be written on this computer: {why}.",
            known.remedy if known else "Check the disk that the data folder is on.",
        )

    def _too_slow(self, timeout_s: float) -> ConnectionLost:
        return ConnectionLost(
            f"A file could not be copied to or from {self.name} within {timeout_s:.0f} s.", self.lost_remedy()
        )

    def hold(self, script: Script, *, ready: str, patience_s: float, on_line: Callable[[str], None]) -> Held:
        """Starts a program that prints a line with `ready` and then runs until its standard input ends.

        All its lines begin with what stands before the last word of `ready`; others are a login shell's.
        """
        mark = ready[: ready.rfind(" ") + 1]
        process = self._start(script, subprocess.STDOUT)
        # Reading a line cannot be interrupted, but killing the program ends it.
        timer = threading.Timer(patience_s, process.kill)
        timer.daemon = True
        timer.start()
        said: deque[str] = deque(maxlen=20)
        others = 0
        try:
            assert process.stdout is not None
            while raw := process.stdout.readline(_LINE_BYTES):
                line = _text(raw).strip()
                if line == ready:
                    return Held(process)
                if line.startswith(mark):
                    on_line(line.removeprefix(mark))
                elif (others := others + len(raw)) > _MOST_LOGIN_BYTES:
                    raise self._endless_login()
                said.append(line.removeprefix(mark))
        except BaseException:
            process.kill()
            Held(process).close()
            raise
        finally:
            timer.cancel()
        Held(process).close()
        if process.returncode == -9:
            raise self._never_free(patience_s, last_words("\n".join(said)))
        raise self._broken_off("\n".join(said))

    def _endless_login(self) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self.name} prints without end at the login, more than {_MOST_LOGIN_BYTES >> 20} MiB.",
            "Look at what the start-up files of the login shell print there.",
        )

    def _never_free(self, patience_s: float, said: str) -> TargetUnavailable:
        if not said:
            return TargetUnavailable(f"{self.name} gave no answer in {patience_s:.0f} s.", self.lost_remedy())
        return TargetUnavailable(
            f"{self.name} was still not free after {patience_s:.0f} s ({said}).",
            "Wait for the other session to end, or stop it; `sme2 devices` shows who measures there.",
        )

    def _transfer_failure(self, verb: str, name: str, said: str) -> Sme2Error:
        if refused := self.refusal(said):
            return refused
        said = last_words(said)
        what = f"{name!r} {verb} {self.name}: {said}"
        if not any(refusal in said for refusal in _REFUSALS):
            # Not an answer from the device's file system, so the device was gone, at least for a moment.
            return ConnectionLost(what, self.lost_remedy())
        full = _full(said)
        return TargetUnavailable(what, FULL_REMEDY) if full else RunnerError(what, "Look at `sme2 devices`.")

    def _broken_off(self, said: str) -> Sme2Error:
        last = last_words(said)
        if self.refusal(said) or not any(refusal in last for refusal in _REFUSALS):
            return self._not_begun(said)
        remedy = f"Check that the folder can be written to there, or name another by {self.root_variable}."
        return TargetUnavailable(
            f"No folder could be created on {self.name}: {last}",
            FULL_REMEDY if _full(last) or "I/O error" in last else remedy,
        )

    def _ended(self, mark: str, status: int, out: bytes, err: bytes) -> tuple[int, bytes, bytes]:
        """The reported exit code, and what the command itself printed: no reports, no greeting."""
        found = re.search(rb"\n" + mark.encode() + rb" end (\d+)\n", err)
        begun = re.search(rb"\n" + mark.encode() + rb" begin \d+\n", err)
        _, talks, printed = out.partition(f"\n{mark} out\n".encode())
        if found is None or begun is None or not talks:
            if f"{mark} begin".encode() in out:
                raise TargetUnavailable(
                    f"{self.name} mixes the outputs of a command: its adbd is too old (before Android 7).",
                    "Use a newer device.",
                )
            if begun is None:
                raise self._not_begun(_text(err).strip() or f"it ended with {status}")
            said = last_words(_text(err[begun.end() :])) or f"it ended with {status}"
            raise ConnectionLost(
                f"The connection to {self.name} was lost in the middle of a command ({said}).",
                self.lost_remedy(),
            )
        kept = err[: begun.start()] + err[begun.end() : found.start()] + err[found.end() :]
        return int(found[1]), printed, kept

    def _end(self, mark: str, err: bytes) -> None:
        """Makes sure that an abandoned command is gone."""
        begun = re.search(mark.encode() + rb" begin (\d+)\n", err)
        if begun is None:
            return
        # The caller's own error is the one that counts, even if the device is out of reach.
        try:
            gone = (
                self.shell(Script(_KILL, (begun[1].decode(), mark)), timeout_s=_KILL_SECONDS).returncode == 0
            )
        except Sme2Error:
            return
        if not gone:
            raise RunnerError(
                f"A command on {self.name} does not end, even when it is killed.",
                "Restart the device, then measure again.",
            )


def _communicate(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, Printed]:
    """Exit code and what was printed. Standard input stays open until the end."""
    # Hidden from Popen, which would close it before it waits.
    held, process.stdin = process.stdin, None
    assert held is not None
    try:
        with process:
            try:
                printed = printed_by(process, time.monotonic() + timeout_s)
            finally:
                process.kill()
        return process.returncode, printed
    finally:
        held.close()


def _assignments(env: Mapping[str, str]) -> list[str]:
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise Sme2Error(f"{name!r} cannot be the name of an environment variable.", "Rename it.")
    return [f"{name}={value}" for name, value in env.items()]


def _signal_or_code(code: int) -> int:
    return 128 - code if code in _SIGNALS else code


def _full(said: str) -> bool:
    return "No space" in said or "quota" in said


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def last_words(text: str) -> str:
    """The end of a program's output, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:])[-400:]
