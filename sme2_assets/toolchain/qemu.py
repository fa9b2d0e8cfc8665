"""The emulator: find a QEMU that has SME2, or fetch one without root.

Belongs here: where `qemu-aarch64` comes from and whether it is new enough. Does not: how a command is run
under it (the emulated target), what the emulated CPU reports in a run (the runner).

`debian.py` fetches the package.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sme2_assets.distribution import emulator_remedy
from sme2_assets.errors import PackagesUnavailable, TargetUnavailable
from sme2_assets.store import one_at_a_time, sha256_of_file
from sme2_assets.toolchain.debian import Fetched, fetch_packages

Version = tuple[int, int, int]
Log = Callable[[str], None]

#: The first release whose `-cpu max` has SME2; 7.2 to 10.0 have only SME.
MINIMUM_VERSION: Version = (10, 1, 0)
ENVIRONMENT_VARIABLE = "SME2_QEMU"

_PROGRAM = "qemu-aarch64"
_PROGRAMS_ON_PATH = (_PROGRAM, f"{_PROGRAM}-static")
_PACKAGE = "qemu-user"
#: The oldest suite with a new enough emulator first: it needs the least from the host. Debian's, then
#: Ubuntu's; a mirror without a suite says so at once.
_SUITES = ("trixie-backports", "forky", "sid", "resolute", "questing")
_COMMAND_SECONDS = 60


@dataclass(frozen=True)
class Qemu:
    """An emulator that exists and is new enough."""

    path: Path
    version: Version
    source: Literal["env", "path", "provisioned"]

    @property
    def version_text(self) -> str:
        return _dotted(self.version)


@dataclass(frozen=True)
class QemuSearch:
    """What a search found, and why it passed over the others."""

    found: Qemu | None
    passed_over: tuple[str, ...] = ()


def find_qemu(tools: Path) -> Qemu | None:
    """The emulator to use: SME2_QEMU, PATH, or one provisioned in `tools`, in this order; None if none."""
    return search_qemu(tools).found


def search_qemu(tools: Path) -> QemuSearch:
    """Like `find_qemu`, with the reasons why candidates were passed over.

    An unsuitable candidate is passed over, except `SME2_QEMU`: that was requested, so it is an error.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return QemuSearch(_named_qemu(named))
    passed_over: list[str] = []
    for program in _PROGRAMS_ON_PATH:
        location = shutil.which(program)
        if location is None:
            continue
        version, reason = _usable_version(Path(location))
        if version is not None:
            return QemuSearch(Qemu(Path(location), version, "path"), tuple(passed_over))
        passed_over.append(reason)
    return QemuSearch(_provisioned_qemu(tools), tuple(passed_over))


def ensure_qemu(tools: Path, *, log: Log) -> Qemu:
    """An existing emulator, otherwise a newly provisioned one."""
    search = search_qemu(tools)
    if search.found is not None:
        return search.found
    for reason in search.passed_over:
        log(f"emulator: passed over {reason}")
    try:
        return provision_qemu(tools, log=log)
    except TargetUnavailable as error:
        if not search.passed_over:
            raise
        what = f"{error.what} (passed over: {'; '.join(search.passed_over)})"
        raise TargetUnavailable(what, error.remedy) from error


def provision_qemu(tools: Path, *, log: Log) -> Qemu:
    """Fetches an emulator into `tools/qemu/<version>/` unless there is one already.

    Complete or absent: unpacked and tried out in a staging folder, then renamed into place. Any number
    of processes may start at once; one fetches, the others wait for it and use the result.
    """
    there = _provisioned_qemu(tools)
    if there is not None:
        return there
    _require_supported_host()
    home = tools / "qemu"
    home.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(home / ".lock", "emulator: waiting for another process that is provisioning it", log):
        there = _provisioned_qemu(tools)
        if there is not None:
            return there
        # We hold the lock, so a staging folder can only be what a killed process left.
        for abandoned in home.glob(".staging-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=home))
        try:
            program, package = _fetch_program(staging / "package", log=log)
            log("emulator: trying it out")
            qemu = _tried_out(program, package)
            ready = staging / "ready"
            ready.mkdir()
            program.rename(ready / _PROGRAM)
            _write_provenance(ready, package)
            final = home / qemu.version_text
            shutil.rmtree(final, ignore_errors=True)
            ready.rename(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    log(f"emulator: QEMU {qemu.version_text} is ready")
    return Qemu(final / _PROGRAM, qemu.version, "provisioned")


def offers_sme2(qemu: Qemu) -> bool:
    """Whether the emulated CPU reports SME2 to its programs: the bit the kernel library would read."""
    with tempfile.TemporaryDirectory(prefix="sme2-qemu-") as folder:
        question = Path(folder) / "has_sme2"
        question.write_bytes(_question())
        question.chmod(0o755)
        try:
            answer = _run([str(qemu.path), "-cpu", "max", str(question)])
        except (OSError, subprocess.TimeoutExpired):
            return False
    return answer.returncode == _HAS_SME2


#: The exit code of the program below if there is SME2; no failure of an emulator looks like it.
_HAS_SME2 = 64


def _question() -> bytes:
    """A complete aarch64 Linux program that asks for SME2: it runs on every host, without any library.

    It finds AT_HWCAP2 (26) in what the kernel put on the stack and exits with its bit 37, times 64.
    """
    code = struct.pack(
        "<15I",
        0xF94003E0,  # ldr  x0, [sp]            the number of arguments
        0x910043E1,  # add  x1, sp, #16         after them and their end,
        0x8B000C21,  # add  x1, x1, x0, lsl #3  the environment,
        0xF8408422,  # ldr  x2, [x1], #8        to its end,
        0xB5FFFFE2,  # cbnz x2, .-4
        0xA8C10C22,  # ldp  x2, x3, [x1], #16   then pairs of type and value,
        0xB40000C2,  # cbz  x2, .+24            to their end,
        0xF100685F,  # cmp  x2, #26             or AT_HWCAP2
        0x54FFFFA1,  # b.ne .-12
        0xD3659460,  # ubfx x0, x3, #37, #1
        0xD37AE400,  # lsl  x0, x0, #6
        0x14000002,  # b    .+8
        0xD2800000,  # mov  x0, #0
        0xD2800BA8,  # mov  x8, #93             exit
        0xD4000001,  # svc  #0
    )
    headers, address = 64 + 56, 0x400000
    size = headers + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64-bit, little-endian
    # An executable (2) for aarch64 (183) with one segment, loaded (1) readable and executable (5).
    elf = struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, address + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, address, address, size, size, 0x10000)
    return identity + elf + segment + code


def _named_qemu(named: str) -> Qemu:
    path = Path(named).expanduser()
    remedy = f"point {ENVIRONMENT_VARIABLE} to a qemu-aarch64 >= {_dotted(MINIMUM_VERSION)}, or unset it"
    if not path.is_file():
        raise TargetUnavailable(f"{ENVIRONMENT_VARIABLE} is {named!r}, and there is no such file", remedy)
    version, reason = _usable_version(path)
    if version is None:
        raise TargetUnavailable(f"{ENVIRONMENT_VARIABLE} cannot be used: {reason}", remedy)
    return Qemu(path.absolute(), version, "env")


def _usable_version(program: Path) -> tuple[Version | None, str]:
    """The version of a new enough emulator; otherwise None and the reason."""
    try:
        answer = _run([str(program), "--version"])
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{program} does not run ({error})"
    match = re.match(rf"{_PROGRAM}\S* version (\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    if answer.returncode != 0 or match is None:
        return None, f"{program} does not say that it is {_PROGRAM}"
    version = _version_of(match)
    if version < MINIMUM_VERSION:
        return None, f"{program} is QEMU {_dotted(version)}, and SME2 needs {_dotted(MINIMUM_VERSION)}"
    return version, ""


def _provisioned_qemu(tools: Path) -> Qemu | None:
    """The newest finished one in `tools`, going by folder names alone, as only finished ones are there."""
    found = []
    for program in (tools / "qemu").glob(f"*/{_PROGRAM}"):
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", program.parent.name)
        if match is None or not os.access(program, os.X_OK):
            continue
        version = _version_of(match)
        if version >= MINIMUM_VERSION:
            found.append(Qemu(program.absolute(), version, "provisioned"))
    return max(found, key=lambda qemu: qemu.version, default=None)


def _require_supported_host() -> None:
    if platform.system() != "Linux":
        raise TargetUnavailable(
            f"the emulator runs Linux programs only on Linux hosts, and this is {platform.system()}",
            "use the emulated platform on a Linux machine, or another platform here",
        )


def _fetch_program(folder: Path, *, architecture: str | None = None, log: Log) -> tuple[Path, Fetched]:
    """The emulator's program in `folder`, from the first suite that has a new enough one."""
    path = f"usr/bin/{_PROGRAM}"
    try:
        (package,) = fetch_packages(
            [_PACKAGE],
            folder,
            architecture=architecture,
            suites=_SUITES,
            # One program, not the 450 MB of all the others.
            only=[path],
            refuse=_too_old,
            log=lambda line: log(f"emulator: {line.removeprefix('packages: ')}"),
        )
    except PackagesUnavailable as error:
        remedy = f"{error.remedy}, or {_remedy()}" if error.remedy else _remedy()
        raise TargetUnavailable(f"no emulator could be provisioned: {error.what}", remedy) from error
    return folder / path, package


def _remedy() -> str:
    return emulator_remedy(_dotted(MINIMUM_VERSION[:2]), ENVIRONMENT_VARIABLE)


def _too_old(package: Fetched) -> str | None:
    match = re.match(r"(?:\d+:)?(\d+)\.(\d+)(?:\.(\d+))?", package.version)
    if match is not None and _version_of(match) >= MINIMUM_VERSION:
        return None
    return f"has QEMU {package.version}, and SME2 needs {_dotted(MINIMUM_VERSION)}"


def _tried_out(program: Path, package: Fetched) -> Qemu:
    version, reason = _usable_version(program)
    if version is None:
        raise TargetUnavailable(f"the emulator of {package.suite} cannot be used here: {reason}", _remedy())
    qemu = Qemu(program, version, "provisioned")
    if not offers_sme2(qemu):
        what = f"QEMU {qemu.version_text} of {package.suite} cannot run a program with SME2 on this machine"
        raise TargetUnavailable(what, _remedy())
    return qemu


def _write_provenance(folder: Path, package: Fetched) -> None:
    provenance = {
        "package": package.name,
        "package_version": package.version,
        "package_sha256": package.sha256,
        "suite": package.suite,
        "program_sha256": sha256_of_file(folder / _PROGRAM),
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_COMMAND_SECONDS,
        check=False,
    )


def _version_of(match: re.Match[str]) -> Version:
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
