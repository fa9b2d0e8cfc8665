"""The emulator: find a QEMU that has SME2, or fetch one without root.

Here belongs everything that knows where `qemu-aarch64` comes from and whether it is new enough.
How a command is run under it belongs to the emulated target; what the emulated CPU reports in a
run is told by the runner itself.

An emulator is fetched from the package mirror this machine already uses: apt gets a source list,
lists folder, cache and state of its own, so neither the machine's package database nor any setting
of it is touched, while its proxies, credentials and keyrings still apply. Signatures stay verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sme2_assets.errors import TargetUnavailable
from sme2_assets.store import one_at_a_time, sha256_of_file

Version = tuple[int, int, int]
Log = Callable[[str], None]

#: The first release whose `-cpu max` has SME2; 7.2 to 10.0 have SME alone.
MINIMUM_VERSION: Version = (10, 1, 0)
ENVIRONMENT_VARIABLE = "SME2_QEMU"
REMEDY = (
    f"install QEMU >= {MINIMUM_VERSION[0]}.{MINIMUM_VERSION[1]} (package qemu-user) and put qemu-aarch64 "
    f"on PATH, or set {ENVIRONMENT_VARIABLE} to its path"
)

_PROGRAM = "qemu-aarch64"
_PROGRAMS_ON_PATH = (_PROGRAM, f"{_PROGRAM}-static")
_PACKAGE = "qemu-user"
#: The oldest suite with a new enough emulator first: it asks least of the host.
_SUITES = ("trixie-backports", "forky", "sid")
#: Where the package debian-archive-keyring puts all the archive's keys, those of newer suites too.
_DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_AT_HWCAP2 = 26
_HWCAP2_SME2 = 1 << 37

_VERSION_COMMAND_SECONDS = 60
_UPDATE_SECONDS = 300
_DOWNLOAD_SECONDS = 1800
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Qemu:
    """An emulator that is there and new enough."""

    path: Path
    version: Version
    source: Literal["env", "path", "provisioned"]

    @property
    def version_text(self) -> str:
        return _dotted(self.version)


@dataclass(frozen=True)
class QemuSearch:
    """What a search found, and why it did not take the others."""

    found: Qemu | None
    passed_over: tuple[str, ...] = ()


def find_qemu(tools: Path) -> Qemu | None:
    """The emulator to use: SME2_QEMU, else PATH, else one provisioned under `tools`; None without any."""
    return search_qemu(tools).found


def search_qemu(tools: Path) -> QemuSearch:
    """Like `find_qemu`, with the reasons why a candidate was not taken.

    A candidate nobody asked for is passed over; `SME2_QEMU` was asked for, so it is right or an error.
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
    """The emulator that is there, else a provisioned one."""
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
    """Fetch an emulator into `tools/qemu/<version>/` unless one is there already.

    Complete or absent: unpacked and tried out in a staging folder, then renamed into place. Any number
    of provisioners may start at once; one fetches, the others wait for it and use what it left.
    """
    there = _provisioned_qemu(tools)
    if there is not None:
        return there
    _require_supported_host()
    home = tools / "qemu"
    home.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(home / ".lock", "emulator: waiting for another process that provisions it", log):
        there = _provisioned_qemu(tools)
        if there is not None:
            return there
        # We hold the lock, so a staging folder can only be what a killed provisioner left.
        for abandoned in home.glob(".staging-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=home))
        try:
            package = _fetch_program(staging / _PROGRAM, log)
            log("emulator: trying it out")
            qemu = _tried_out(staging / _PROGRAM, package)
            _write_provenance(staging, package)
            # mkdtemp makes the folder private; tools may be shared between users.
            staging.chmod(0o755)
            final = home / qemu.version_text
            shutil.rmtree(final, ignore_errors=True)
            staging.rename(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    ready = Qemu(final / _PROGRAM, qemu.version, "provisioned")
    log(f"emulator: QEMU {ready.version_text} is ready")
    return ready


def offers_sme2(qemu: Qemu) -> bool:
    """Whether the emulated CPU tells its programs that it has SME2 (one to two seconds).

    Asks this Python interpreter, run under the emulator, for the bit the kernel library would read.
    Only where host and guest architecture are the same: elsewhere the interpreter cannot run there.
    """
    question = (
        "import ctypes; ask = ctypes.CDLL(None).getauxval; ask.restype = ctypes.c_ulong; "
        f"ask.argtypes = [ctypes.c_ulong]; print(ask({_AT_HWCAP2}))"
    )
    command = [str(qemu.path), "-cpu", "max", sys.executable, "-I", "-S", "-c", question]
    try:
        answer = _run(command, timeout_seconds=_VERSION_COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    capabilities = answer.stdout.strip()
    return answer.returncode == 0 and capabilities.isdigit() and bool(int(capabilities) & _HWCAP2_SME2)


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
    """The version of a new enough emulator; else None and the reason."""
    try:
        answer = _run([str(program), "--version"], timeout_seconds=_VERSION_COMMAND_SECONDS)
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
    """The newest finished one under `tools`: told by folder name alone, as only finished ones are there."""
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
    host = f"{platform.system()} {platform.machine()}"
    if host != "Linux aarch64":
        raise TargetUnavailable(
            f"an emulator is not provisioned on {host} yet: it would need an aarch64 system's libraries too",
            "use the emulated platform on an aarch64 Linux machine, or another platform here",
        )
    missing = [program for program in ("apt-get", "apt-cache", "dpkg-deb") if shutil.which(program) is None]
    if missing:
        raise TargetUnavailable(f"no emulator can be provisioned without {', '.join(missing)}", REMEDY)


@dataclass(frozen=True)
class _Package:
    """One version of the emulator's package in one suite."""

    suite: str
    debian_version: str
    version: Version
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class _Repository:
    """A package repository this machine already uses, and the keys that may sign it."""

    uri: str
    keyrings: tuple[Path, ...] = field(default=())

    def source_line(self, suite: str) -> str:
        # Nothing but the package index is needed; other indexes cost tens of megabytes.
        options = ["target=Packages"]
        if self.keyrings:
            options.append(f"signed-by={','.join(map(str, self.keyrings))}")
        return f"deb [{' '.join(options)}] {self.uri} {suite} main\n"


class _Apt:
    """apt with all its own state in one folder and the machine's settings otherwise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = folder / "apt.conf"
        self._sources = folder / "sources.list"
        for name in ("lists/partial", "cache/archives/partial", "state", "packages"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        self._config.write_text(self._settings())

    def _settings(self) -> str:
        folders = {
            "Dir::Etc::sourcelist": self._sources,
            "Dir::Etc::sourceparts": "/dev/null",
            # With one suite there is nothing to prefer, and a pin could hide the only candidate.
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State": self._folder / "state",
            "Dir::State::lists": self._folder / "lists",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
        }
        # Stated, so that a machine that switched verification off does not switch it off here.
        verification = {
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::AllowWeakRepositories": "false",
            "Acquire::AllowDowngradeToInsecureRepositories": "false",
            "APT::Get::AllowUnauthenticated": "false",
        }
        patience = {"Acquire::Retries": "2", "APT::Update::Error-Mode": "any"}
        # The machine's hooks are for its own package lists (and may need root).
        lines = ["#clear APT::Update::Post-Invoke;", "#clear APT::Update::Post-Invoke-Success;"]
        lines += [f'{key} "{value}";' for key, value in {**folders, **verification, **patience}.items()]
        return "\n".join(lines) + "\n"

    def newest_package(self, repository: _Repository, suite: str) -> _Package:
        """The emulator's package in a suite; ValueError says why there is none to use."""
        self._sources.write_text(repository.source_line(suite))
        update = self._apt("apt-get", "update", timeout_seconds=_UPDATE_SECONDS)
        if update.returncode != 0:
            raise ValueError(_reason(update.stdout + update.stderr))
        # A package that is not there is an error to apt-cache; to us it is an answer without a version.
        shown = self._apt("apt-cache", "show", "--no-all-versions", _PACKAGE, timeout_seconds=60)
        fields = dict(re.findall(r"^(\S+): (.*)$", shown.stdout, flags=re.MULTILINE))
        match = re.match(r"(?:\d+:)?(\d+)\.(\d+)(?:\.(\d+))?", fields.get("Version", ""))
        if match is None:
            raise ValueError(f"has no {_PACKAGE}")
        version = _version_of(match)
        if version < MINIMUM_VERSION:
            raise ValueError(f"has QEMU {_dotted(version)}, and SME2 needs {_dotted(MINIMUM_VERSION)}")
        size_bytes = int(fields.get("Size", "0"))
        return _Package(suite, fields["Version"], version, size_bytes, fields.get("SHA256", ""))

    def download(self, package: _Package, log: Log) -> Path:
        """The package's file, verified by apt against the signed index."""
        folder = self._folder / "packages"
        command = self._command("apt-get", "download", f"{_PACKAGE}={package.debian_version}")
        # A file, not a pipe: nothing reads while the loop below watches the folder grow.
        with (self._folder / "download.log").open("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                _watch(process, folder, package.size_bytes, log)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            output.seek(0)
            told = output.read()
        files = sorted(folder.glob("*.deb"))
        if process.returncode != 0 or len(files) != 1:
            raise ValueError(_reason(told))
        return files[0]

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [program, "-c", str(self._config), "-q", *arguments]

    def _apt(self, program: str, *arguments: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
        try:
            return _run(self._command(program, *arguments), timeout_seconds=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"did not answer within {timeout_seconds:.0f} s") from error


def _fetch_program(destination: Path, log: Log) -> _Package:
    """Put the emulator's program at `destination`, from the first suite that has a new enough one."""
    repositories = _repositories()
    if not repositories:
        raise TargetUnavailable("apt has no package repository to take an emulator from", REMEDY)
    refusals: list[str] = []
    # In the system's temporary folder, not under tools: as root, apt downloads as another user,
    # who could not enter a private parent folder.
    with tempfile.TemporaryDirectory(prefix="sme2-qemu-") as folder:
        Path(folder).chmod(0o755)
        apt = _Apt(Path(folder))
        for repository in repositories:
            for suite in _SUITES:
                log(f"emulator: looking for QEMU >= {_dotted(MINIMUM_VERSION)} in {suite}")
                try:
                    package = apt.newest_package(repository, suite)
                    megabytes = f"{package.size_bytes / 1e6:.0f} MB"
                    log(f"emulator: downloading QEMU {_dotted(package.version)} ({megabytes})")
                    archive = apt.download(package, log)
                    log("emulator: unpacking")
                    _unpack_program(archive, destination)
                except ValueError as error:
                    refusals.append(f"{suite}: {error}")
                else:
                    return package
    raise _nothing_to_fetch(refusals)


def _nothing_to_fetch(refusals: Sequence[str]) -> TargetUnavailable:
    what = f"no emulator could be provisioned ({'; '.join(refusals)})"
    if any("NO_PUBKEY" in refusal for refusal in refusals):
        what += "; this machine does not know the key that signs the newer suites"
        return TargetUnavailable(what, f"update the package debian-archive-keyring, or {REMEDY}")
    return TargetUnavailable(what, REMEDY)


def _repositories() -> list[_Repository]:
    """The machine's repositories with their keys, in its own order, each once.

    Asked without release information: with it, apt keeps silent about repositories whose lists are
    not downloaded, as in a fresh container.
    """
    answer = _run(
        ["apt-get", "indextargets", "--no-release-info", "Created-By: Packages"],
        timeout_seconds=_VERSION_COMMAND_SECONDS,
    )
    repositories: dict[str, _Repository] = {}
    for stanza in answer.stdout.split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", stanza, flags=re.MULTILINE))
        uri = fields.get("Repo-URI", "")
        # A security archive holds fixes of released suites alone, none of those asked for here.
        if uri and not fields.get("Release", "").endswith("-security"):
            repositories.setdefault(uri, _Repository(uri, _keyrings(fields.get("Signed-By", ""))))
    return list(repositories.values())


def _keyrings(signed_by: str) -> tuple[Path, ...]:
    """Key files for a source line: those apt tells (only newer versions do), and the whole Debian keyring.

    A machine may name a keyring of its own release alone, which does not hold newer suites' keys.
    Without any, apt falls back to the keys the machine trusts for everything.
    """
    told = [Path(name) for name in re.split(r"[,\s]+", signed_by) if name.startswith("/")]
    candidates = dict.fromkeys([*told, _DEBIAN_KEYRING])
    return tuple(path for path in candidates if path.is_file())


def _unpack_program(archive: Path, destination: Path) -> None:
    """Take the one program out of the package, not the 450 MB beside it."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as members:
                for member in members:
                    if member.isfile() and member.name.endswith(f"/bin/{_PROGRAM}"):
                        content = members.extractfile(member)
                        assert content is not None
                        with destination.open("wb") as file:
                            shutil.copyfileobj(content, file)
                        destination.chmod(0o755)
                        return
        except tarfile.TarError as error:
            raise ValueError(f"the package is damaged ({error})") from error
        finally:
            # The rest of the archive is not wanted, and waiting for a full pipe would never end.
            process.kill()
    raise ValueError(f"the package has no {_PROGRAM}")


def _tried_out(program: Path, package: _Package) -> Qemu:
    version, reason = _usable_version(program)
    if version is None:
        raise TargetUnavailable(f"the emulator of {package.suite} cannot be used here: {reason}", REMEDY)
    qemu = Qemu(program, version, "provisioned")
    if not offers_sme2(qemu):
        what = f"QEMU {qemu.version_text} of {package.suite} runs no program with SME2 on this machine"
        raise TargetUnavailable(what, REMEDY)
    return qemu


def _write_provenance(folder: Path, package: _Package) -> None:
    provenance = {
        "package": _PACKAGE,
        "package_version": package.debian_version,
        "package_sha256": package.sha256,
        "suite": package.suite,
        "program_sha256": sha256_of_file(folder / _PROGRAM),
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


def _watch(process: subprocess.Popen[bytes], folder: Path, size_bytes: int, log: Log) -> None:
    """Wait for a download and tell every few seconds how far it is."""
    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PROGRESS_SECONDS)
            return
        there_bytes = sum(file.stat().st_size for file in folder.glob("*.deb*"))
        log(f"emulator: {there_bytes / 1e6:.0f} of {size_bytes / 1e6:.0f} MB")
    raise ValueError(f"the download did not end within {_DOWNLOAD_SECONDS} s")


def _run(command: list[str], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=_plain_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_seconds,
        check=False,
    )


def _plain_environment() -> dict[str, str]:
    # Messages are read by this module, so they must be in the language it knows.
    return {**os.environ, "LC_ALL": "C"}


def _reason(output: str) -> str:
    """apt's first complaint; the lines after it repeat it in other words."""
    complaints = [line.strip() for line in output.splitlines() if re.match(r"[EW]: ", line)]
    keyless = [line for line in complaints if "NO_PUBKEY" in line]
    return (keyless or complaints or ["apt failed without saying why"])[0][3:]


def _version_of(match: re.Match[str]) -> Version:
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
