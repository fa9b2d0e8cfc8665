"""ExecuTorch's C++ SDK: that of the installed wheel, or of another wheel, downloaded from the index.

Belongs here: finding, downloading and checking libraries and headers. `build.py` and `cross.py` make a
toolchain of them.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import io
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.archives import BadArchive, unpack, zip_members
from sme2_assets.errors import BuildError
from sme2_assets.store import one_at_a_time

Log = Callable[[str], None]

# System and machine, as in `Toolchain.target`.
HERE = f"{platform.system()} {platform.machine()}"
# Wheels of earlier versions have the Python extension alone.
OLDEST = "1.5.0"

#: From the oldest C library up; an ExecuTorch version has a wheel for one of them.
_LINUX_TAGS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
_WHEEL_PARTS = ("executorch/lib/", "executorch/include/", "executorch/share/")
_CONFIG = Path("lib/cmake/executorch/executorch-config.cmake")
_DOWNLOAD_SECONDS = 1800


@dataclass(frozen=True)
class Sdk:
    """Libraries and headers of one version for one system, and the hash of the list of their hashes."""

    folder: Path
    version: str
    record_sha256: str


def installed_sdk() -> Sdk:
    """That of the installed wheel, without importing it."""
    remedy = f"Install it into this environment: {sys.executable} -m pip install 'executorch>=1.5.1'"
    try:
        distribution = importlib.metadata.distribution("executorch")
        spec = importlib.util.find_spec("executorch")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise BuildError("ExecuTorch is not installed", remedy) from None
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    for location in map(Path, locations):
        if (location / _CONFIG).is_file():
            record = distribution.read_text("RECORD") or ""
            return Sdk(location.resolve(), distribution.version, hashlib.sha256(record.encode()).hexdigest())
    raise BuildError(f"ExecuTorch {distribution.version} ships no C++ SDK to build the runner with", remedy)


def sdk_here(version: str, tools: Path, *, log: Log) -> Sdk:
    """That of a version for this machine: installed, if it is that one or none is named."""
    installed = installed_sdk()
    if version in ("", installed.version, installed.version.split("+")[0]):
        return installed
    return fetch_sdk(version, HERE, tools, log=log)


def require_sdk(version: str) -> None:
    """Refuses a version whose wheel is known to have no SDK."""
    if _numbers(version) < _numbers(OLDEST):
        raise _no_sdk(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _no_sdk(version: str) -> BuildError:
    return BuildError(
        f"The wheel of ExecuTorch {version} has no C++ libraries to build a runner with.",
        f"Choose version {OLDEST} or newer.",
    )


def fetch_sdk(version: str, target: str, tools: Path, *, log: Log) -> Sdk:
    """That of a version for a system and machine (`Linux aarch64`), in `tools`, downloaded if it is missing.

    Complete or absent, like everything here: checked and unpacked in a staging folder, then renamed.
    """
    require_sdk(version)
    home = tools / "executorch"
    # PyPI has no local versions such as 1.5.1+cpu.
    public = version.split("+")[0]
    system, machine = target.split()
    final = home / f"{public}-{machine}-{system.lower()}"
    home.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(home / f".{final.name}.lock", "runner: waiting for another download", log):
        if not final.is_dir():
            for abandoned in home.glob(".staging-*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".staging-", dir=home) as staging:
                log(f"runner: downloading ExecuTorch {public} for {machine} {system}")
                wheel = _download_wheel(public, target, Path(staging))
                unpacked = Path(staging) / "sdk"
                _unpack_wheel(wheel, public, unpacked)
                unpacked.rename(final)
    record = hashlib.sha256((final / "RECORD").read_bytes()).hexdigest()
    return Sdk((final / "executorch").resolve(), version, record)


def _download_wheel(version: str, target: str, folder: Path) -> Path:
    """The wheel, checked by pip against the hash that the package index gives."""
    system, machine = target.split()
    # Elsewhere pip knows best which wheels fit this machine.
    tags = [f"{tag}_{machine}" for tag in _LINUX_TAGS] if system == "Linux" else []
    command = [
        # -P: not a pip.py of the current folder.
        *(sys.executable, "-P", "-m", "pip", "download"),
        *("--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--only-binary=:all:", "--dest", str(folder)),
        *(word for tag in tags for word in ("--platform", tag)),
        f"executorch=={version}",
    ]
    remedy = f"Check the network and pip's settings, then run it by hand: {shlex.join(command)}"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"ExecuTorch's wheel did not arrive within {_DOWNLOAD_SECONDS} s", remedy) from error
    if "No module named pip" in done.stderr:
        raise BuildError("this Python environment has no pip", f"{sys.executable} -m ensurepip")
    wheels = sorted(folder.glob("executorch-*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        if offered := re.search(r"\(from versions: (?!none)(.+)\)", done.stderr):
            usable = [it for it in offered[1].split(", ") if _numbers(it) >= _numbers(OLDEST)]
            raise BuildError(
                f"There is no ExecuTorch {version} for {machine} {system} and this Python.",
                f"Choose another version: {', '.join(usable) or 'none fits'}.",
            )
        told = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        if "(from versions: none)" in done.stderr:
            told = "the package index does not answer, or has no wheel of ExecuTorch for this Python"
        raise BuildError(
            f"ExecuTorch {version} for {machine} {system} could not be downloaded: {told}", remedy
        )
    return wheels[0]


def _unpack_wheel(wheel: Path, version: str, destination: Path) -> None:
    """The libraries and headers of the wheel, each checked against the wheel's own RECORD."""
    record_name = f"executorch-{version}.dist-info/RECORD"
    try:
        with zipfile.ZipFile(wheel) as archive:
            record = archive.read(record_name)
            hashes = {row[0]: row[1] for row in csv.reader(io.StringIO(record.decode())) if len(row) == 3}
            unpack((it for it in zip_members(archive) if it.name.startswith(_WHEEL_PARTS)), destination)
        for file in (path for path in destination.rglob("*") if path.is_file()):
            name = file.relative_to(destination).as_posix()
            if hashes.get(name) != _record_hash(file.read_bytes()):
                raise ValueError(f"{name} is not what its RECORD says")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, BadArchive) as error:
        raise BuildError(
            f"{wheel.name} is damaged: {error}", "Try again; if that does not help, clear pip's cache."
        ) from error
    if not (destination / "executorch" / _CONFIG).is_file():
        raise _no_sdk(version)
    (destination / "RECORD").write_bytes(record)


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
