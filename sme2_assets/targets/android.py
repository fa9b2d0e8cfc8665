"""Android devices over adb: which one is meant, and how a session uses it.

Belongs here: the choice of a device, what lies where on it, and who may use it. Does not: how adb is
spoken to (adb), what the device is and in which state (device_facts), power modes (power).

On the device everything is below one folder, `/data/local/tmp/sme2` unless SME2_ANDROID_ROOT names another:

    store/<sha256>            every file that was ever sent, under the hash of its content
    programs/<sha256>/        links into the store, under the names that a program's files must have
    sessions/<name>/files/    what commands of one session write; gone when the session ends
    current                   the session that holds the device

A session is held by a process on the device whose standard input is ours. When we end, die or lose the
device, it removes the session's folder. So no file of an earlier session can be taken for one of this.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import Fidelity
from sme2_assets.store import safe_name, sha256_of_file
from sme2_assets.targets.adb import (
    FULL_REMEDY,
    Adb,
    Device,
    Listed,
    Script,
    device_id_of,
    is_network_serial,
    require_adb,
)
from sme2_assets.targets.base import (
    Availability,
    Completed,
    MachineFacts,
    Program,
    Target,
    Workspace,
)
from sme2_assets.targets.device_facts import device_cpus, device_facts, device_snapshot
from sme2_assets.targets.environment import Snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.targets.power import applied, restore_from
from sme2_assets.targets.qemu import Qemu, find_qemu

Log = Callable[[str], None]

DEFAULT_ROOT = "/data/local/tmp/sme2"
ROOT_VARIABLE = "SME2_ANDROID_ROOT"
EMULATE_VARIABLE = "SME2_ANDROID_EMULATE"
ANY = "any"
#: What a device must keep free beyond what is sent to it: results are written there too.
SPARE_BYTES = 64 * 2**20

_SETUP_SECONDS = 120.0
_BUSY_PATIENCE_S = 600.0
_RECOVER_PAUSE_S = 1.0
_POOL_PAUSE_S = 2.0
_POOL_PATIENCE_S = 1800.0
_EM_AARCH64 = 183

# A session lives as long as the process that holds it, which has the session's name among its words. They end
# in NUL characters, where toybox's grep stops reading unless it is told of them.
_SESSIONS = """\
alive() {
  pid=$(cat "$root/sessions/$1/holder" 2>/dev/null) && grep -qzF "$1" "/proc/$pid/cmdline" 2>/dev/null
}
end() {
  for file in $(grep -lzF "$1" /proc/[0-9]*/cmdline 2>/dev/null); do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    kill -9 "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$root/sessions/$1"
  [ "$(readlink "$root/current")" = "$1" ] && rm -f "$root/current"
}
"""
# Holds a session until standard input ends. `ln -s` makes a name or fails, so one alone succeeds. The folder
# of a session that nobody holds is a leftover of one that could not clean up, e.g. as the device restarted.
_HOLD = f"""\
root=$1; name=$2
{_SESSIONS}
mkdir -p "$root/sessions" "$root/store" "$root/programs" && mkdir "$root/sessions/$name" || exit 1
echo $$ > "$root/sessions/$name/holder" && mkdir "$root/sessions/$name/files" || exit 1
until ln -s "$name" "$root/current" 2>/dev/null; do
  holder=$(readlink "$root/current") || exit 1
  if alive "$holder"; then
    # Fails when nobody listens any more.
    echo "held by $holder" || {{ rm -rf "$root/sessions/$name"; exit 1; }}
    sleep 1
  else
    end "$holder"
  fi
done
for folder in "$root"/sessions/*; do
  other=${{folder##*/}}
  [ "$other" = "$name" ] || alive "$other" || [ -z "$(find "$folder" -maxdepth 0 -mmin +1)" ] || end "$other"
done
echo ready
read -r line
rm -f "$root/current"
rm -rf "$root/sessions/$name"
"""
# The name comes in two halves: whole, it would be among the words of this very process.
_END_SESSION = f"""\
root=$1
{_SESSIONS}
end "$2$3"
exit 0
"""
# Hashes that are not in the store, or not with that content; then the free space.
_MISSING = """\
root=$1; shift
for sha in "$@"; do
  found=$(sha256sum "$root/store/$sha" 2>/dev/null)
  [ "${found%% *}" = "$sha" ] || echo "missing $sha"
done
df -Pk "$root"
"""
# From the session's folder into the store, when what arrived is what was sent.
_ACCEPT = """\
root=$1; incoming=$2; shift 2
for sha in "$@"; do
  found=$(sha256sum "$incoming/$sha") || exit 1
  if [ "${found%% *}" = "$sha" ]; then
    chmod 755 "$incoming/$sha" && mv -f "$incoming/$sha" "$root/store/$sha" || exit 1
  else
    echo "damaged $sha"
  fi
done
"""
_LINK = """\
root=$1; folder=$2; shift 2
while [ $# -gt 0 ]; do
  mkdir -p "$(dirname "$folder/$1")" && ln -sf "$root/store/$2" "$folder/$1" || exit 1
  shift 2
done
"""
_RUN = """\
cd "$1" || exit 1
shift
exec "$@"
"""
_WHO = """\
for name in ro.serialno ro.build.fingerprint; do getprop $name 2>/dev/null || :; done
"""
_SPACE = """\
root=$1; folder=$1
while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
df -Pk "$folder"
echo "stored $(du -sk "$root" 2>/dev/null | cut -f1)"
"""
_CLEAN = f"""\
root=$1
{_SESSIONS}
[ -d "$root" ] || exit 0
holder=$(readlink "$root/current") && alive "$holder" && echo "held by $holder" && exit 0
kib=$(du -sk "$root" | cut -f1)
rm -rf "$root/sessions" "$root/store" "$root/programs" "$root/current" || exit 1
echo "$kib"
"""


def android_root() -> str:
    """The folder on a device below which everything lies."""
    named = os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT
    path = PurePosixPath(named)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise Sme2Error(f"{ROOT_VARIABLE} is {named!r}.", "Give an absolute path of a folder on the device.")
    return str(path)


def emulating() -> bool:
    return os.environ.get(EMULATE_VARIABLE) == "1"


# Which device


def choose_device(adb: Adb, named: str | None) -> Device:
    """The device that is meant, in a state to be used; else a TargetUnavailable that says what to do."""
    listed = adb.devices()
    serial = named or os.environ.get("ANDROID_SERIAL")
    if serial is None:
        if not listed:
            raise TargetUnavailable(
                "No Android device is connected.",
                "Connect one by USB with USB debugging on, or `adb connect ADDRESS:PORT`; docs/android.md "
                "has the steps.",
            )
        if len(listed) > 1:
            raise TargetUnavailable(
                f"Several Android devices are connected: {_names(listed)}.",
                "Name one (`--device SERIAL`, or ANDROID_SERIAL), or say `--device any`.",
            )
        serial = listed[0].serial
    found = next((device for device in listed if device.serial == serial), None)
    if found is None:
        connect = f"`adb connect {serial}`, or name" if is_network_serial(serial) else "Connect it, or name"
        raise TargetUnavailable(
            f"adb knows no device {serial!r}; connected: {_names(listed) or 'none'}.",
            f"{connect} one that is connected.",
        )
    if not found.usable:
        raise TargetUnavailable(f"The Android device {serial} is in the state {found.state!r}.", found.remedy)
    return adb.device(serial)


def _names(listed: Sequence[Listed]) -> str:
    return ", ".join(
        device.serial
        + (f" ({device.model})" if device.model else "")
        + ("" if device.usable else f" [{device.state}]")
        for device in listed
    )


# What a session does there


@dataclass(frozen=True)
class _Sent:
    """A local file and the hash of its content."""

    path: Path
    sha256: str
    size_bytes: int


class AndroidWorkspace(Workspace):
    """The folder of one session on a device."""

    def __init__(self, device: Device, root: str, name: str, log: Log) -> None:
        self.device = device
        self.root = root
        self.name = name
        self.folder = f"{root}/sessions/{name}"
        self.wrapper: list[str] = []
        self.bytes_pushed = 0
        self._log = log
        # What is known to be in the store with the right content.
        self._there: set[str] = set()
        self._hashes: dict[tuple[str, int, int], str] = {}

    def install(self, program: Program) -> list[str]:
        files = {name: self._hashed(program.folder / _inside(name)) for name in program.files}
        for part in program.start:
            if part.startswith("./") and part[2:] in files:
                _require_aarch64(files[part[2:]].path)
        listing = "".join(f"{sent.sha256} {name}\n" for name, sent in sorted(files.items()))
        folder = f"{self.root}/programs/{hashlib.sha256(listing.encode()).hexdigest()}"
        if folder not in self._there:
            self._send(list(files.values()))
            pairs = [word for name, sent in files.items() for word in (name, sent.sha256)]
            self.device.script(_LINK, self.root, folder, *pairs, timeout_s=_SETUP_SECONDS)
            self._there.add(folder)
        return program.command_in(folder)

    def put(self, local: Path) -> str:
        sent = self._hashed(local)
        self._send([sent])
        return f"{self.root}/store/{sent.sha256}"

    def path(self, name: str) -> str:
        return f"{self.folder}/files/{_inside(name)}"

    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Completed:
        words = [*self.wrapper, *command]
        done = self.device.shell(Script(_RUN, (f"{self.folder}/files", *words)), env=env, timeout_s=timeout_s)
        return replace(done, command=words)

    def get(self, name: str, local: Path) -> None:
        remote = self.path(name)
        local.parent.mkdir(parents=True, exist_ok=True)
        # Under its final name only when it is whole.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=local.parent) as staging:
            pulled = Path(staging) / "pulled"
            try:
                self.device.pull(remote, pulled)
            except ConnectionLost:
                raise
            except RunnerError as error:
                if "No such file" not in error.what:
                    raise
                raise RunnerError(
                    f"The runner ended well but did not write {name}.", "Report this as a defect."
                ) from error
            shutil.move(pulled, local)
        self.device.shell(["rm", "-rf", remote], timeout_s=_SETUP_SECONDS)

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
        """Brings into the store what is not there; whatever is, was checked by its hash in this session."""
        asked = {sent.sha256: sent for sent in files if sent.sha256 not in self._there}
        if not asked:
            return
        answer = self.device.script(_MISSING, self.root, *asked, timeout_s=_SETUP_SECONDS)
        missing = [asked[sha256] for sha256 in re.findall(r"^missing ([0-9a-f]{64})$", answer, re.MULTILINE)]
        if missing:
            self._require_space(sum(sent.size_bytes for sent in missing), answer)
            self._push(missing)
        self._there.update(asked)

    def _push(self, files: Sequence[_Sent]) -> None:
        started = time.monotonic()
        for sent in files:
            self.device.push(sent.path, f"{self.folder}/{sent.sha256}")
        shas = [sent.sha256 for sent in files]
        answer = self.device.script(_ACCEPT, self.root, self.folder, *shas, timeout_s=_SETUP_SECONDS)
        if damaged := re.findall(r"^damaged ([0-9a-f]{64})$", answer, re.MULTILINE):
            names = ", ".join(sent.path.name for sent in files if sent.sha256 in damaged)
            raise RunnerError(
                f"{names} did not arrive on {self.device.serial} as sent, or changed meanwhile.",
                "Measure again; if it stays so, try another cable or port.",
            )
        pushed = sum(sent.size_bytes for sent in files)
        self.bytes_pushed += pushed
        seconds = time.monotonic() - started
        self._log(
            f"{self.device.device_id}: pushed {len(files)} files, {pushed / 1e6:.1f} MB in {seconds:.1f} s"
        )

    def _require_space(self, needed: int, df: str) -> None:
        free = free_bytes(df)
        if free is not None and free < needed + SPARE_BYTES:
            raise TargetUnavailable(
                f"{self.device.serial} has {free / 1e6:.0f} MB free at {self.root}; "
                f"{needed / 1e6:.0f} MB have to be sent, and {SPARE_BYTES / 1e6:.0f} MB kept free.",
                FULL_REMEDY,
            )


def free_bytes(df: str) -> int | None:
    """What `df -Pk` says of the last file system it lists."""
    found = re.findall(r"\s(\d+)\s+(\d+)\s+(-?\d+)\s+(?:\d+%|-)\s", df)
    return max(0, int(found[-1][2])) * 1024 if found else None


def _inside(name: str) -> str:
    """A name that stays below the folder it is used in."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or path == PurePosixPath(".") or "\0" in name:
        raise Sme2Error(f"{name!r} does not name a file inside a session's folder.", "Choose a plain name.")
    return name


def _elf_machine(program: Path) -> int | None:
    """For which CPU an ELF file is; None when it is none."""
    with program.open("rb") as handle:
        head = handle.read(20)
    return int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" else None


def _require_aarch64(program: Path) -> None:
    """A program for another CPU would fail on the device in words that nobody understands."""
    machine = _elf_machine(program)
    if machine not in (None, _EM_AARCH64):
        raise RunnerError(
            f"{program.name} is not a program for aarch64 (ELF machine {machine}).",
            "Materialise the runner of the platform android: it is built for aarch64 on every host.",
        )


# Targets


def open_android(tools: Path, device: str | None) -> Target:
    """The target of a device by serial number, of `any` able one, or (None) of the only one."""
    device = device or os.environ.get("ANDROID_SERIAL")
    return (
        AndroidPool(tools, any_device=device == ANY) if device in (None, ANY) else one_device(tools, device)
    )


def one_device(tools: Path, serial: str) -> AndroidTarget:
    """The target of one device; under emulation when the environment says so."""
    return (EmulatedAndroidTarget if emulating() else AndroidTarget)(tools, serial)


class AndroidTarget(Target):
    """One device, named by its serial number."""

    platform = "android"
    fidelity: Fidelity = "hardware"
    bundled = True

    def __init__(self, tools: Path, serial: str) -> None:
        self.tools = tools
        self.serial = serial
        self.device = device_id_of(serial)
        self._log: Log = lambda message: None
        # Who answered when the lease began: an address on a network can become another device's.
        self._identity: str | None = None
        # Sessions that may still be held over there because the connection was lost.
        self._sessions: list[str] = []

    @property
    def handle(self) -> Device:
        """The device as adb addresses it, whatever its state."""
        return require_adb().device(self.serial)

    def availability(self, sme2: str) -> Availability:
        try:
            device = choose_device(require_adb(), self.serial)
            machine, cpuinfo = _machine_and_cpuinfo(device)
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        if machine != "aarch64":
            return Availability(
                False,
                f"the Android device {self.serial} is not aarch64 but {machine!r}.",
                "Use a device with a 64-bit Arm CPU and a 64-bit Android.",
            )
        return self._able(sme2, cpuinfo)

    def _able(self, sme2: str, cpuinfo: str) -> Availability:
        if sme2 == "on" and not has_sme2(cpuinfo):
            return Availability(
                False,
                f"the CPU of the Android device {self.serial} (or its kernel) has no SME2.",
                "Measure on a device with SME2, measure only android-sme2_off as a baseline, or set "
                f"{EMULATE_VARIABLE}=1 to see under emulation which operators take SME2 kernels.",
            )
        return Availability(True, self.serial)

    def facts(self) -> MachineFacts:
        return device_facts(self.handle)

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        return device_snapshot(self.handle, sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        return device_cpus(self.handle, choice)

    @contextmanager
    def power(self, mode: str, leases: Path, log: Log) -> Iterator[dict[str, Any]]:
        if not mode:
            yield {}
            return
        with applied(self.handle, mode, power_journal(leases, self.device), log) as facts:
            yield facts

    @contextmanager
    def leased(self, leases: Path, log: Log) -> Iterator[Target]:
        with lease(leases, self.device, log=log):
            self.begin(leases, log)
            yield self

    def begin(self, leases: Path, log: Log) -> None:
        """What the holder of the lease does first: puts back what a process that died has left set."""
        self._log = log
        self._sessions.clear()
        self._identity = self._who()
        journal = power_journal(leases, self.device)
        if journal.is_file():
            log(f"{self.device}: an earlier session died with power settings changed; putting them back")
            restore_from(journal, self.handle, log)

    @contextmanager
    def workspace(self) -> Iterator[AndroidWorkspace]:
        device, root = self.handle, android_root()
        name = f"{_host_name()}-{os.getpid()}-{secrets.token_hex(6)}"
        waiting: list[str] = []

        def told(line: str) -> None:
            if line.startswith("held by ") and not waiting:
                waiting.append(line)
                self._log(
                    f"{self.device} is used by another computer or data folder ({line}); waiting for it"
                )

        self._sessions.append(name)
        holder = device.hold(
            Script(_HOLD, (root, name)), ready="ready", patience_s=_BUSY_PATIENCE_S, on_line=told
        )
        try:
            workspace = AndroidWorkspace(device, root, name, self._log)
            self._prepare(workspace)
            yield workspace
            self._log(f"{self.device}: {workspace.bytes_pushed / 1e6:.1f} MB pushed in this session")
        finally:
            # Never in the way of what ended the session: what is left is removed when the next one begins.
            holder.close()

    def _prepare(self, workspace: AndroidWorkspace) -> None:
        """What has to be on the device besides a program."""

    def recover(self, patience_s: float, log: Log) -> None:
        """Waits until the device answers, asking adb to reconnect; ends what is left of our sessions."""
        deadline_s = time.monotonic() + patience_s
        reason = ""
        while True:
            try:
                problem = self._reconnected()
                who = None if problem else self._who()
            except Sme2Error as error:
                problem, who = str(error), None
            if not problem and self._identity in (None, who):
                log(f"{self.device} answers again")
                return
            if not problem:
                raise TargetUnavailable(
                    f"Another device answers at {self.serial} than the one the session began with.",
                    "Look at `adb devices -l`, connect the right one, and measure again.",
                )
            if problem != reason:
                log(f"{self.device}: {problem}")
                reason = problem
            if time.monotonic() > deadline_s:
                raise ConnectionLost(
                    f"{self.serial} stayed away for {patience_s:.0f} s ({problem}).",
                    "Connect the device again (`sme2 devices` shows its state), then measure again.",
                )
            time.sleep(_RECOVER_PAUSE_S)

    def _reconnected(self) -> str:
        """Nothing when the device answers; else in which state it is, after asking for a new connection."""
        adb = require_adb()
        listed = adb.listed(self.serial)
        if listed is not None and listed.usable:
            self._end_sessions()
            return ""
        if is_network_serial(self.serial):
            if listed is not None:
                adb.run(["disconnect", self.serial])
            adb.run(["connect", self.serial])
        elif listed is not None and listed.state == "offline":
            adb.run(["-s", self.serial, "reconnect"])
        if listed is None:
            return "not connected"
        return f"in the state {listed.state!r}. {listed.remedy}"

    def _who(self) -> str:
        """What tells devices apart: only Android has it, elsewhere all are alike."""
        return self.handle.script(_WHO)

    def _end_sessions(self) -> None:
        """Also where the device has not noticed yet that the connection is gone, as after a loss of Wi-Fi."""
        for name in list(self._sessions):
            half = len(name) // 2
            self.handle.script(_END_SESSION, android_root(), name[:half], name[half:])
            self._sessions.remove(name)

    def space(self) -> tuple[int | None, int]:
        """Bytes that are free where our folder is or would be, and bytes that it takes."""
        answer = self.handle.script(_SPACE, android_root(), timeout_s=_SETUP_SECONDS)
        df, _, kib = answer.rpartition("stored ")
        return free_bytes(df), int(kib.strip() or 0) * 1024

    def clean(self) -> int:
        """Removes everything of ours from the device; gives the bytes that were freed."""
        answer = self.handle.script(_CLEAN, android_root(), timeout_s=_SETUP_SECONDS).strip()
        if answer.startswith("held by"):
            raise TargetUnavailable(
                f"{self.serial} is measuring ({answer}).", "Wait for the session to end, or stop it."
            )
        return int(answer or 0) * 1024


class EmulatedAndroidTarget(AndroidTarget):
    """A device without SME2 that runs an emulator: kernels and outputs are real, times mean nothing."""

    fidelity: Fidelity = "emulated"
    # As on this host, see EmulatedTarget.
    sampling_environment: ClassVar[Mapping[str, str]] = EmulatedTarget.sampling_environment

    def _able(self, sme2: str, cpuinfo: str) -> Availability:
        try:
            qemu = self._qemu()
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        return Availability(True, f"{self.serial}, under QEMU {qemu.version_text}")

    def facts(self) -> MachineFacts:
        return replace(super().facts(), cpu="QEMU -cpu max", emulator=f"QEMU {self._qemu().version_text}")

    def _prepare(self, workspace: AndroidWorkspace) -> None:
        workspace.wrapper = [workspace.put(self._qemu().path), "-cpu", "max"]

    def _qemu(self) -> Qemu:
        qemu = find_qemu(self.tools)
        if qemu is None:
            raise TargetUnavailable(
                f"{EMULATE_VARIABLE} is set, and no QEMU >= 10.1 was found to send to the device.",
                "Run `sme2 emulator`, or point SME2_QEMU at a static qemu-aarch64 for aarch64.",
            )
        if _elf_machine(qemu.path) != _EM_AARCH64:
            raise TargetUnavailable(
                f"{qemu.path} runs on this host's CPU, not on an aarch64 device.",
                "Point SME2_QEMU at a static qemu-aarch64 built for aarch64 (Debian's qemu-user, arm64).",
            )
        return qemu


class AndroidPool(Target):
    """The only device, or `any` of several: which one is decided when a session begins."""

    platform = "android"
    bundled = True
    device = "android-any"

    def __init__(self, tools: Path, *, any_device: bool) -> None:
        self.tools = tools
        self.any_device = any_device
        self.fidelity: Fidelity = "emulated" if emulating() else "hardware"
        # What the next session asks of a device.
        self._states: set[str] = set()

    def candidates(self) -> list[AndroidTarget]:
        """The devices that are connected and in a state to be used."""
        adb = require_adb()
        if not self.any_device:
            return [one_device(self.tools, choose_device(adb, None).serial)]
        listed = adb.devices()
        usable = [device.serial for device in listed if device.usable]
        if not usable:
            if not listed:
                choose_device(adb, None)
            raise TargetUnavailable(
                f"No connected Android device can be used: {_names(listed)}.",
                "; ".join(f"{device.serial}: {device.remedy}" for device in listed),
            )
        return [one_device(self.tools, serial) for serial in usable]

    def availability(self, sme2: str) -> Availability:
        try:
            answers = [target.availability(sme2) for target in self.candidates()]
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        able = [answer for answer in answers if answer.ok]
        if able:
            return Availability(True, ", ".join(answer.detail for answer in able))
        return replace(answers[0], detail=" ".join(answer.detail for answer in answers))

    def require(self, sme2: str) -> None:
        super().require(sme2)
        self._states.add(sme2)

    @contextmanager
    def leased(self, leases: Path, log: Log) -> Iterator[Target]:
        with ExitStack() as held:
            target = self._first_free(held, leases, log)
            log(f"measuring on {target.serial} ({target.device})")
            target.begin(leases, log)
            yield target

    def _first_free(self, held: ExitStack, leases: Path, log: Log) -> AndroidTarget:
        """Takes the lease of the first able device that nobody uses, waiting while all are in use."""
        deadline_s = time.monotonic() + _POOL_PATIENCE_S
        waiting = False
        while True:
            able = self._able_ones()
            for target in able:
                try:
                    held.enter_context(lease(leases, target.device, log=lambda message: None, patience_s=0))
                except TargetUnavailable:
                    continue
                return target
            if not waiting:
                log(f"all able devices are in use: {', '.join(target.serial for target in able)}; waiting")
                waiting = True
            if time.monotonic() > deadline_s:
                raise TargetUnavailable(
                    f"All able Android devices were still in use after {_POOL_PATIENCE_S:.0f} s.",
                    "Wait for the other sessions to end, or connect more devices.",
                )
            time.sleep(_POOL_PAUSE_S)

    def _able_ones(self) -> list[AndroidTarget]:
        candidates = self.candidates()
        states = sorted(self._states)
        able = [t for t in candidates if all(t.availability(state).ok for state in states)]
        if not able:
            for state in states:
                super().require(state)
            raise TargetUnavailable(
                "No single device gives " + " and ".join(f"SME2 {state}" for state in states) + ".",
                "Connect a device with SME2.",
            )
        return able

    def facts(self) -> MachineFacts:
        return self.candidates()[0].facts()

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        return self.candidates()[0].snapshot(sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        return self.candidates()[0].cpus(choice)

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with self.candidates()[0].workspace() as workspace:
            yield workspace


def power_journal(leases: Path, device_id: str) -> Path:
    """Where a session keeps the power settings it has to put back."""
    return leases / f"{safe_name(device_id)}.power.json"


def has_sme2(cpuinfo: str) -> bool:
    """Whether `/proc/cpuinfo` names SME2. All CPUs must have it: a thread may run on any."""
    features = re.findall(r"^Features\s*:(.*)$", cpuinfo, re.MULTILINE)
    return bool(features) and all("sme2" in line.split() for line in features)


def _machine_and_cpuinfo(device: Device) -> tuple[str, str]:
    machine, _, cpuinfo = device.script("uname -m; cat /proc/cpuinfo").partition("\n")
    return machine.strip(), cpuinfo


def _host_name() -> str:
    """A part of a session's name, for the people who wonder who uses the device."""
    return re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:24] or "host"
