"""One device behind adb: commands that run on it, and files that go there and back.

Belongs here: running, holding, killing, sending and fetching, with each failure named for what it is.
Does not: what a measurement needs of a device (workspace, target).

adb's own exit code says too little: a cut connection can look like the end of a command. So every remote
command is wrapped by a small program that reports its process when it begins and its exit code when it ends.
Without the second report the connection was lost, whatever adb says. The program also holds its standard
input: when that ends, because we were killed, gave up or lost the device, it kills the command. Nothing
keeps running on a device that nobody waits for.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.distribution import adb_remedy
from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.targets.android.adb import ENVIRONMENT_VARIABLE, Adb, is_network_serial, last_words
from sme2_assets.targets.android.script import Script, shell_program
from sme2_assets.targets.base import Completed

FULL_REMEDY = "Free space on the device; `sme2 devices --clean` removes what sme2 has put there."
ROOT_REMEDY = "Check that the folder can be written to by `adb shell`, or name another by SME2_ANDROID_ROOT."

#: How long a command that was given up may take to be gone.
_KILL_SECONDS = 10.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A shell tells the death of a command by signal N as 128 + N; Linux has signals up to 64.
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
)
_WATCHED = shell_program("watched")
_KILL = shell_program("kill")


def device_id_of(serial: str) -> str:
    """How a device is called in data: serial numbers are private, and no file names."""
    return f"android-{hashlib.sha256(serial.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Held:
    """A program on a device that runs until it is let go."""

    process: subprocess.Popen[bytes]

    def close(self) -> None:
        """Ends its standard input and waits for it; without its device it has ended already."""
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


@dataclass(frozen=True)
class Device:
    """One device, always named by its serial number."""

    adb: Adb
    serial: str

    @property
    def device_id(self) -> str:
        return device_id_of(self.serial)

    def _start(self, script: Script, stderr: int) -> subprocess.Popen[bytes]:
        """Starts a program on the device, with pipes to and from it."""
        command = [str(self.adb.path), "-s", self.serial, "shell", "-T", script.remote_command()]
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        except OSError as error:
            raise TargetUnavailable(
                f"{command[0]} could not be started: {error}", adb_remedy(ENVIRONMENT_VARIABLE)
            ) from error

    def shell(
        self,
        command: Sequence[str] | Script,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Completed:
        """Runs a command on the device. Death by signal N is exit code -N, as subprocess has it.

        A command that outlives the time-out is killed over there: RunnerError. A lost connection is
        ConnectionLost.
        """
        words = command.argv() if isinstance(command, Script) else list(command)
        if env:
            words = ["env", *_assignments(env), *words]
        mark = f"sme2-{secrets.token_hex(8)}"
        started = time.monotonic()
        process = self._start(Script(_WATCHED, (mark, *words)), subprocess.PIPE)
        status, out, err, expired = _communicate(process, timeout_s)
        if expired:
            self._end(mark, err)
            raise RunnerError(
                f"The command on {self.serial} did not end within {timeout_s:g} s and was killed: "
                f"{shlex.join(words)[:200]}",
                "Ask for fewer iterations, or raise `timeout_s` in the run configuration.",
            )
        code, err = self._ended(mark, status, out, err)
        return Completed(words, _signal_or_code(code), _text(out), _text(err), time.monotonic() - started)

    def script(self, text: str, *arguments: str, timeout_s: float = 30) -> str:
        """What a shell program of ours prints; RunnerError when it fails."""
        done = self.shell(Script(text, arguments), timeout_s=timeout_s)
        if done.returncode != 0:
            raise RunnerError(
                f"A step on {self.serial} failed (exit code {done.returncode}): {last_words(done.stderr)}",
                "Run `sme2 devices` to see the state of the device and its free space.",
            )
        return done.stdout

    def hold(self, script: Script, *, ready: str, patience_s: float, on_line: Callable[[str], None]) -> Held:
        """Starts a program that says `ready` on a line and then goes on until its standard input ends."""
        process = self._start(script, subprocess.STDOUT)
        held = Held(process)
        # Reading a line cannot be interrupted; ending the program ends the reading.
        timer = threading.Timer(patience_s, process.kill)
        timer.daemon = True
        timer.start()
        said = ""
        try:
            assert process.stdout is not None
            for raw in process.stdout:
                line = _text(raw).strip()
                if line == ready:
                    return held
                said = line or said
                on_line(line)
        except BaseException:
            held.close()
            raise
        finally:
            timer.cancel()
        held.close()
        if process.returncode == -9:
            raise TargetUnavailable(
                f"{self.serial} was still not free after {patience_s:.0f} s ({said or 'no answer'}).",
                "Wait for the other session to end, or stop it; `sme2 devices` shows who measures there.",
            )
        raise self._broken_off(said)

    def push(self, local: Path, remote: str, *, timeout_s: float = 1800) -> None:
        """Copies a file to the device."""
        done = self._adb(["push", str(local.absolute()), remote], timeout_s)
        if done.returncode != 0:
            raise self._transfer_failure("could not be sent to", local.name, done)

    def pull(self, remote: str, local: Path, *, timeout_s: float = 1800) -> None:
        """Copies a file or folder from the device; `local` must not exist yet."""
        done = self._adb(["pull", remote, str(local.absolute())], timeout_s)
        if done.returncode != 0:
            raise self._transfer_failure("could not be fetched from", remote, done)

    def _adb(self, arguments: Sequence[str], timeout_s: float) -> Completed:
        return self.adb.run(["-s", self.serial, *arguments], timeout_s=timeout_s)

    def _transfer_failure(self, verb: str, name: str, done: Completed) -> Sme2Error:
        said = last_words(done.stdout + "\n" + done.stderr)
        what = f"{name!r} {verb} {self.serial}: {said}"
        if not any(refusal in said for refusal in _REFUSALS):
            # Not an answer of the device's file system, so the device was gone, at least for a moment.
            return ConnectionLost(what, self._lost_remedy())
        full = "No space" in said or "quota" in said
        return TargetUnavailable(what, FULL_REMEDY) if full else RunnerError(what, "Look at `sme2 devices`.")

    def _broken_off(self, said: str) -> Sme2Error:
        if any(refusal in said for refusal in _REFUSALS):
            remedy = FULL_REMEDY if "No space" in said else ROOT_REMEDY
            return TargetUnavailable(f"No folder could be created on {self.serial}: {said}", remedy)
        return ConnectionLost(f"The connection to {self.serial} was lost ({said}).", self._lost_remedy())

    def _ended(self, mark: str, status: int, out: bytes, err: bytes) -> tuple[int, bytes]:
        """The reported exit code, and standard error without the reports."""
        found = re.search(rb"\n" + mark.encode() + rb" end (\d+)\n", err)
        begun = re.search(mark.encode() + rb" begin \d+\n", err)
        if found is None or begun is None:
            if mark.encode() in out:
                raise TargetUnavailable(
                    f"{self.serial} mixes the outputs of a command: its adbd is too old (before Android 7).",
                    "Use a newer device.",
                )
            said = last_words(_text(err[begun.end() :] if begun else err)) or f"adb ended with {status}"
            when = (
                "in the middle of a command" if begun else "before the device said that the command had begun"
            )
            raise ConnectionLost(
                f"The connection to {self.serial} was lost {when} ({said}).", self._lost_remedy()
            )
        return int(found[1]), err[: begun.start()] + err[begun.end() : found.start()] + err[found.end() :]

    def _lost_remedy(self) -> str:
        try:
            listed = self.adb.listed(self.serial)
        except Sme2Error as error:
            return error.remedy or adb_remedy(ENVIRONMENT_VARIABLE)
        if listed is None:
            return "Connect the device again" + (
                f" (`adb connect {self.serial}`)."
                if is_network_serial(self.serial)
                else " (cable, port, hub)."
            )
        return listed.remedy or "The device is back: run it again. Check the cable if this happens often."

    def _end(self, mark: str, err: bytes) -> None:
        """Makes sure that a command which was given up is gone."""
        begun = re.search(mark.encode() + rb" begin (\d+)\n", err)
        if begun is None:
            return
        # The message of whoever gave up is the one that counts, also when the device is out of reach.
        try:
            gone = (
                self.shell(Script(_KILL, (begun[1].decode(), mark)), timeout_s=_KILL_SECONDS).returncode == 0
            )
        except Sme2Error:
            return
        if not gone:
            raise RunnerError(
                f"A command on {self.serial} does not end, even when it is killed.",
                "Restart the device, then measure again.",
            )


def _communicate(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, bytes, bytes, bool]:
    """Exit code, both outputs, and whether the time was up. Standard input stays open until the end."""
    # Out of reach of `communicate`, which would close it at once.
    held, process.stdin = process.stdin, None
    assert held is not None
    try:
        out, err = process.communicate(timeout=timeout_s)
        return process.returncode, out, err, False
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return process.returncode, out, err, True
    except BaseException:
        process.kill()
        process.communicate()
        raise
    finally:
        held.close()


def _assignments(env: Mapping[str, str]) -> list[str]:
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise Sme2Error(f"{name!r} cannot be the name of an environment variable.", "Rename it.")
    return [f"{name}={value}" for name, value in env.items()]


def _signal_or_code(code: int) -> int:
    return 128 - code if code in _SIGNALS else code


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
