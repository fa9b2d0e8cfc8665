"""The transport to one device: commands that run on it, and files that go there and back.

Belongs here: running, holding and killing commands, with a specific error for each failure; what a kind of
transport must implement for that. Does not: the kinds (android/device, ssh/connection), what a measurement
needs from a device (workspace, target).

A transport's own exit code says too little: a broken connection can look like the end of a command. So every
remote command is wrapped by a small program that reports its process when it begins and its exit code when it
ends. Without the second report the connection was lost, whatever the transport says. The program also watches
its standard input: when that ends, because we were killed, gave up or lost the device, it kills the command.
No command keeps running on a device once nobody waits for it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sme2_assets.errors import ConnectionLost, Refused, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.targets.base import Completed
from sme2_assets.targets.printed import Printed, printed_by, too_much_text
from sme2_assets.targets.remote.script import Script, shell_program

FULL_REMEDY = "Free space on the device; `sme2 devices --clean` removes what sme2 has put there."

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
#: How much of a line is read at once while a device is being taken, and how much a login may print there.
_LINE_BYTES = 1 << 16
_MOST_LOGIN_BYTES = 1 << 20


@dataclass(frozen=True)
class Held:
    """A program on a device that runs until it is released; `told` is what it said when it was ready."""

    process: subprocess.Popen[bytes]
    told: str = ""

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
    def pull(self, remote: str, local: Path, *, timeout_s: float = 1800) -> None:
        """Copies a file or folder from the device; `local` must not exist yet."""

    @abstractmethod
    def install_remedy(self) -> str:
        """How to get the transport's program."""

    @abstractmethod
    def lost_remedy(self) -> str:
        """What to do about a connection that broke."""

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
                if line == ready or line.startswith(f"{ready} "):
                    return Held(process, line.removeprefix(ready).strip())
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
