"""Tools that build the runner for aarch64 Linux on any other host.

Belongs here: where ExecuTorch's aarch64 libraries come from, and how they and a cross compiler
(`targets/cross_compiler.py`) make a toolchain. What is done with it is told in `build.py` and `bundle.py`.

The libraries are those of the aarch64 wheel of the very version that is installed here: the runner then reads
what this machine exports.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sme2_assets.errors import BuildError
from sme2_assets.runner.build import (
    Log,
    Toolchain,
    find_cmake_version,
    find_executorch,
    find_tool,
    first_line,
)
from sme2_assets.store import one_at_a_time
from sme2_assets.targets.cross_compiler import find_cross_compiler

TARGET = "Linux aarch64"

#: From the oldest C library up; the wheel of an ExecuTorch version is for one of them.
_WHEEL_PLATFORMS = tuple(
    f"{tag}_aarch64" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
)
_WHEEL_PARTS = ("executorch/lib/", "executorch/include/", "executorch/share/")
_DOWNLOAD_SECONDS = 1800


def cross_toolchain(tools: Path, *, log: Log, fetched_compiler: bool = False) -> Toolchain:
    """Everything a build for aarch64 Linux needs; what is missing is fetched into `tools`.

    `fetched_compiler` takes the package's compiler even where one is installed.
    """
    _, version, _ = find_executorch()
    cmake = find_tool("cmake")
    compiler = find_cross_compiler(tools, log=log, fetched=fetched_compiler)
    sdk, record_sha256 = fetch_sdk(version, tools, log=log)
    return Toolchain(
        executorch_dir=sdk,
        executorch_version=version,
        executorch_record_sha256=record_sha256,
        cmake=cmake,
        cmake_version=find_cmake_version(cmake),
        ninja=find_tool("ninja"),
        compiler=compiler.command,
        compiler_id=first_line([*compiler.command, "--version"], compiler.variables),
        target=TARGET,
        options=("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
        # Flags that are set here are meant for this machine's own compiler.
        variables={**compiler.variables, "CXXFLAGS": "", "LDFLAGS": ""},
    )


def fetch_sdk(version: str, tools: Path, *, log: Log) -> tuple[Path, str]:
    """ExecuTorch's aarch64 Linux libraries and headers below `tools`, and the hash of their RECORD.

    Complete or absent, like everything here: checked and unpacked in a staging folder, then renamed.
    """
    home = tools / "executorch"
    # PyPI knows no local versions such as 1.5.1+cpu.
    public = version.split("+")[0]
    final = home / f"{public}-aarch64-linux"
    home.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(home / f".{final.name}.lock", "runner: waiting for another download", log):
        if not final.is_dir():
            for abandoned in home.glob(".staging-*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".staging-", dir=home) as staging:
                log(f"runner: downloading ExecuTorch {public} for aarch64 Linux")
                wheel = _download_wheel(public, Path(staging))
                unpacked = Path(staging) / "sdk"
                _unpack_wheel(wheel, public, unpacked)
                unpacked.rename(final)
    return final / "executorch", hashlib.sha256((final / "RECORD").read_bytes()).hexdigest()


def _download_wheel(version: str, folder: Path) -> Path:
    """The wheel, checked by pip against the hash that the package index tells."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
        *("--no-deps", "--only-binary=:all:", "--dest", str(folder)),
        *(word for name in _WHEEL_PLATFORMS for word in ("--platform", name)),
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
        raise BuildError(f"ExecuTorch's wheel did not come within {_DOWNLOAD_SECONDS} s", remedy) from error
    if "No module named pip" in done.stderr:
        raise BuildError("this Python environment has no pip", f"{sys.executable} -m ensurepip")
    wheels = sorted(folder.glob("executorch-*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        told = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise BuildError(f"ExecuTorch {version} for aarch64 Linux could not be downloaded: {told}", remedy)
    return wheels[0]


def _unpack_wheel(wheel: Path, version: str, destination: Path) -> None:
    """The libraries and headers of the wheel, each checked against the wheel's own RECORD."""
    record_name = f"executorch-{version}.dist-info/RECORD"
    try:
        with zipfile.ZipFile(wheel) as archive:
            record = archive.read(record_name)
            hashes = {row[0]: row[1] for row in csv.reader(io.StringIO(record.decode())) if len(row) == 3}
            for name in archive.namelist():
                if not name.startswith(_WHEEL_PARTS) or name.endswith("/"):
                    continue
                content = archive.read(name)
                if hashes.get(name) != _record_hash(content):
                    raise ValueError(f"{name} is not what its RECORD says")
                file = destination / name
                if not file.resolve().is_relative_to(destination.resolve()):
                    raise ValueError(f"{name} leads out of the wheel")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BuildError(
            f"{wheel.name} is damaged: {error}", "Try again; if that does not help, clear pip's cache."
        ) from error
    (destination / "RECORD").write_bytes(record)


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
