"""The adb client: which devices there are, and what one of them is told to do.

Belongs here: everything that knows adb's words, its listing, its exit codes and its failures, and the one
function that quotes a command for a remote shell. Does not: what a measurement needs of a device (android).

adb's own exit code says too little: a cut connection can look like the end of a command. So every remote
command is wrapped by a small program that reports its process when it begins and its exit code when it ends.
Without the second report the connection was lost, whatever adb says. The program also holds its standard
input: when that ends, because we were killed, gave up or lost the device, it kills the command. Nothing
goes on running on a device that nobody waits for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sme2_assets.distribution import adb_remedy
from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.targets.base import Completed

ENVIRONMENT_VARIABLE = "SME2_ADB"

#: What to do about each state of a listed device. Any other state is one that adb may invent later.
STATE_REMEDIES = {
    "offline": "Unlock the device and plug it in again, or run `adb reconnect offline`. A device on the "
    "network is offline when it sleeps or left it: wake it, then `adb disconnect` and `adb connect` it.",
    "unauthorized": "Unlock the device and accept `Allow USB debugging` for this computer. If it does not "
    "ask: Developer options, Revoke USB debugging authorisations, then plug it in again.",
    "authorizing": "Wait a moment; if it stays so, unlock the device and accept `Allow USB debugging`.",
    "connecting": "Wait a moment; if it stays so, run `adb disconnect` and `adb connect` again.",
    "no permissions": "This user may not open the USB device: install the package android-udev-rules (or "
    "android-sdk-platform-tools-common), join the group plugdev, log in again, `adb kill-server`.",
    "recovery": "Start the device into Android: choose `Reboot system now`, or `adb reboot`.",
    "sideload": "Start the device into Android: `adb reboot`.",
    "rescue": "Start the device into Android: `adb reboot`.",
    "bootloader": "Start the device into Android: `fastboot reboot`.",
    "detached": "Another program has released the device: run `adb attach`.",
}
_OTHER_STATE_REMEDY = "Plug the device in again, then look at `adb devices -l`."
FULL_REMEDY = "Free space on the device; `sme2 devices --clean` removes what sme2 has put there."
ROOT_REMEDY = "Check that the folder can be written to by `adb shell`, or name another by SME2_ANDROID_ROOT."

_ADB_SECONDS = 30.0
#: How long a command that was given up may take to be gone.
_KILL_SECONDS = 10.0
#: adb writes the length of a request in four hexadecimal digits.
_MAX_COMMAND_BYTES = 60_000
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

# `$$` leads a process group, as adbd starts every shell in a session of its own. Without a descriptor of
# its own a background process of a shell would read from /dev/null. The last line ends the watcher; the exit
# code that counts is the reported one.
_WATCHED = """\
mark=$1; shift
echo "$mark begin $$" >&2
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
( read -r line <&3; kill -9 -$$ ) >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait $child
code=$?
printf '\\n%s end %s\\n' "$mark" "$code" >&2
kill -9 $watcher 2>/dev/null
exit $code
"""
# The same for a command that reads what is given to it: there is no input left to watch.
_FED = """\
mark=$1; shift
echo "$mark begin $$" >&2
"$@"
code=$?
printf '\\n%s end %s\\n' "$mark" "$code" >&2
exit $code
"""
# Whether a command that was given up is gone; killed when it is not. Its words, which hold the mark, tell
# whether the process is still that one.
_END = """\
pid=$1; mark=$2; tries=0
while [ $tries -lt 20 ]; do
  grep -qzF "$mark" "/proc/$pid/cmdline" 2>/dev/null || exit 0
  [ $tries -gt 2 ] && kill -9 "-$pid" 2>/dev/null
  sleep 0.1
  tries=$((tries + 1))
done
exit 1
"""


def quoted(argv: Sequence[str]) -> str:
    """The words as a POSIX shell reads them back, whatever is in them."""
    if any("\0" in word for word in argv):
        raise Sme2Error("A command line cannot hold a NUL character.", "Choose another name.")
    return shlex.join(argv)


def device_id_of(serial: str) -> str:
    """How a device is called in data: serial numbers are private, and no file names."""
    return f"android-{hashlib.sha256(serial.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Script:
    """A POSIX shell program of ours; the arguments are its positional parameters, never part of its text."""

    text: str
    arguments: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        return ["sh", "-c", self.text, "sme2", *self.arguments]


@dataclass(frozen=True)
class Listed:
    """A line of adb's listing."""

    serial: str
    state: str
    product: str | None
    model: str | None
    # How it is connected: `usb`, `tcp` or `emulator`.
    transport: str

    @property
    def usable(self) -> bool:
        return self.state == "device"

    @property
    def remedy(self) -> str | None:
        return None if self.usable else STATE_REMEDIES.get(self.state, _OTHER_STATE_REMEDY)


def find_adb() -> Path | None:
    """The adb to use: $SME2_ADB, which is right or an error, else the one on PATH."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        path = Path(named).expanduser().absolute()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise TargetUnavailable(
                f"{ENVIRONMENT_VARIABLE} is {named!r}, and there is no such program.",
                f"Point {ENVIRONMENT_VARIABLE} to adb, or unset it.",
            )
        return path
    found = shutil.which("adb")
    return Path(found) if found else None


def require_adb() -> Adb:
    path = find_adb()
    if path is None:
        raise TargetUnavailable(
            "adb, which talks to Android devices, was not found.", adb_remedy(ENVIRONMENT_VARIABLE)
        )
    return Adb(path)


def parse_devices(text: str) -> list[Listed]:
    """What `adb devices -l` printed."""
    listed = []
    for line in text.splitlines():
        match = re.match(r"(\S.*?)\s+(no permissions|[a-z]+)\b(.*)$", line)
        if match is None or line.startswith(("List of devices", "*", "adb ")):
            continue
        serial, state, rest = match.groups()
        facts = dict(re.findall(r"(?:^|\s)(usb|product|model|transport_id):(\S+)", rest))
        listed.append(Listed(serial, state, facts.get("product"), facts.get("model"), _transport(serial)))
    return listed


def _transport(serial: str) -> str:
    if serial.startswith("emulator-"):
        return "emulator"
    return "tcp" if is_network_serial(serial) else "usb"


def is_network_serial(serial: str) -> bool:
    """Whether the name is an address (or a name that adb found on the network)."""
    return bool(re.search(r":\d{1,5}$|\._adb(-tls-connect)?\._tcp\.?$", serial))


@dataclass(frozen=True)
class Adb:
    """An adb program. Its environment is ours, so ADB_SERVER_SOCKET and the like work as in a terminal."""

    path: Path

    def devices(self) -> list[Listed]:
        done = self.run(["devices", "-l"])
        if done.returncode != 0:
            raise TargetUnavailable(
                f"adb does not list its devices: {_last_words(done.stderr)}",
                "Run `adb kill-server` and `adb start-server`. With a remote server, check ADB_SERVER_SOCKET "
                "and that the server runs with `adb -a`.",
            )
        return parse_devices(done.stdout)

    def listed(self, serial: str) -> Listed | None:
        return next((device for device in self.devices() if device.serial == serial), None)

    def device(self, serial: str) -> Device:
        return Device(self, serial)

    def run(self, arguments: Sequence[str], *, timeout_s: float = _ADB_SECONDS) -> Completed:
        """adb itself, with whatever exit code it gives."""
        command = [str(self.path), *arguments]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as expired:
            raise ConnectionLost(
                f"`adb {shlex.join(arguments[:6])}` did not answer within {timeout_s:.0f} s.",
                "Look at `adb devices -l`; `adb kill-server` and `adb reconnect` help a server that hangs.",
            ) from expired
        except OSError as error:
            raise TargetUnavailable(
                f"{self.path} could not be started: {error}", adb_remedy(ENVIRONMENT_VARIABLE)
            ) from error
        return Completed(
            command, done.returncode, _text(done.stdout), _text(done.stderr), time.monotonic() - started
        )


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
    device_id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "device_id", device_id_of(self.serial))

    def shell(
        self,
        command: Sequence[str] | Script,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float,
        stdin: bytes | None = None,
    ) -> Completed:
        """Runs a command on the device. Death by signal N is exit code -N, as subprocess has it.

        A command that outlives the time-out is killed over there: RunnerError. A lost connection is
        ConnectionLost.
        """
        words = command.argv() if isinstance(command, Script) else list(command)
        if env:
            words = ["env", *_assignments(env), *words]
        mark = f"sme2-{secrets.token_hex(8)}"
        remote = _remote(Script(_WATCHED if stdin is None else _FED, (mark, *words)))
        local = [str(self.adb.path), "-s", self.serial, "shell", "-T", remote]
        started = time.monotonic()
        status, out, err, expired = _communicate(local, stdin, timeout_s)
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
                f"A step on {self.serial} failed (exit code {done.returncode}): {_last_words(done.stderr)}",
                "Look at `sme2 devices`: it tells the state of the device and its free space.",
            )
        return done.stdout

    def hold(self, script: Script, *, ready: str, patience_s: float, on_line: Callable[[str], None]) -> Held:
        """Starts a program that says `ready` on a line and then goes on until its standard input ends."""
        command = [str(self.adb.path), "-s", self.serial, "shell", "-T", _remote(script)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise TargetUnavailable(
                f"{command[0]} could not be started: {error}", adb_remedy(ENVIRONMENT_VARIABLE)
            ) from error
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
        said = _last_words(done.stdout + "\n" + done.stderr)
        what = f"{name!r} {verb} {self.serial}: {said}"
        if not any(refusal in said for refusal in _REFUSALS):
            # Whatever is no answer of the device's file system: it was gone, at least for a moment.
            return ConnectionLost(what, self._lost_remedy())
        full = "No space" in said or "quota" in said
        return TargetUnavailable(what, FULL_REMEDY) if full else RunnerError(what, "Look at `sme2 devices`.")

    def _broken_off(self, said: str) -> Sme2Error:
        if any(refusal in said for refusal in _REFUSALS):
            remedy = FULL_REMEDY if "No space" in said else ROOT_REMEDY
            return TargetUnavailable(f"No folder can be made on {self.serial}: {said}", remedy)
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
            said = _last_words(_text(err[begun.end() :] if begun else err)) or f"adb ended with {status}"
            when = "in the middle of a command" if begun else "before a command could begin"
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
                self.shell(Script(_END, (begun[1].decode(), mark)), timeout_s=_KILL_SECONDS).returncode == 0
            )
        except Sme2Error:
            return
        if not gone:
            raise RunnerError(
                f"A command on {self.serial} does not end, even killed.",
                "Restart the device, then measure again.",
            )


def _remote(script: Script) -> str:
    """What adb hands to the device's shell; replaced by ours, which so leads the process group."""
    remote = "exec " + quoted(script.argv())
    if len(os.fsencode(remote)) > _MAX_COMMAND_BYTES:
        raise Sme2Error(
            f"A command of {len(remote)} characters is too long for adb.", "Use shorter or fewer names."
        )
    return remote


def _communicate(command: list[str], stdin: bytes | None, timeout_s: float) -> tuple[int, bytes, bytes, bool]:
    """Exit code, both outputs, and whether the time was up. Standard input stays open until the end."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise TargetUnavailable(
            f"{command[0]} could not be started: {error}", adb_remedy(ENVIRONMENT_VARIABLE)
        ) from error
    held = None
    if stdin is None:
        # Out of reach of `communicate`, which would close it at once.
        held, process.stdin = process.stdin, None
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
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
        if held is not None:
            held.close()


def _assignments(env: Mapping[str, str]) -> list[str]:
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise Sme2Error(f"{name!r} cannot be the name of an environment variable.", "Rename it.")
    return [f"{name}={value}" for name, value in env.items()]


def _signal_or_code(code: int) -> int:
    return 128 - code if code in _SIGNALS else code


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:])[-400:]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
