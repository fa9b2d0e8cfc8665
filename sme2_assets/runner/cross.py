"""Tools that build the runner for aarch64 Linux on any other host.

Belongs here: where a cross compiler and ExecuTorch's aarch64 libraries come from. What is done with them is
told in `build.py` and `bundle.py`.

The libraries are those of the aarch64 wheel of the very version that is installed here: the runner then reads
what this machine exports. The compiler is one that is installed, else Debian's or Ubuntu's package, unpacked
into the tools folder. Either brings the C and C++ libraries that the runner is linked with.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sme2_assets.errors import BuildError, PackagesUnavailable
from sme2_assets.runner.build import (
    Log,
    Toolchain,
    find_cmake_version,
    find_executorch,
    find_tool,
    first_line,
)
from sme2_assets.store import one_at_a_time
from sme2_assets.targets.debian import PROGRAMS, fetch_packages

TARGET = "Linux aarch64"
REMEDY = (
    "Install a C++ cross compiler for aarch64 Linux that brings its C library: "
    "`sudo apt install g++-aarch64-linux-gnu` on Debian and Ubuntu, "
    "`brew install messense/macos-cross-toolchains/aarch64-unknown-linux-gnu` on macOS."
)

_COMPILERS = ("aarch64-linux-gnu-g++", "aarch64-unknown-linux-gnu-g++")
_PACKAGE = "g++-aarch64-linux-gnu"
#: From the oldest C library up; the wheel of an ExecuTorch version is for one of them.
_WHEEL_PLATFORMS = tuple(
    f"{tag}_aarch64" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
)
_WHEEL_PARTS = ("executorch/lib/", "executorch/include/", "executorch/share/")
_DOWNLOAD_SECONDS = 1800


@dataclass(frozen=True)
class CrossCompiler:
    """How a C++ compiler for aarch64 Linux is called."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def library(self, name: str) -> Path | None:
        """The file of one of the libraries it links with."""
        return library_of(self.command, name, self.variables)


def library_of(
    compiler: tuple[str, ...], name: str, variables: Mapping[str, str] | None = None
) -> Path | None:
    """The file of a library that a compiler links with; None when it has none of that name."""
    done = subprocess.run(
        [*compiler, f"-print-file-name={name}"],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # A compiler that does not know a library answers with the name alone.
    path = Path(done.stdout.strip())
    return path.resolve() if path.is_absolute() and path.is_file() else None


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


# The compiler


def find_cross_compiler(tools: Path, *, log: Log, fetched: bool = False) -> CrossCompiler:
    """An installed compiler, else the distribution's, unpacked into `tools`."""
    installed, passed_over = (None, "") if fetched else installed_compiler()
    if installed is not None:
        return installed
    if passed_over:
        log(f"runner: passed over {passed_over}")
    folder = compiler_folder(tools)
    try:
        fetch_packages([_PACKAGE], folder, with_dependencies=True, log=log)
    except PackagesUnavailable as error:
        what = f"no compiler for aarch64 Linux is installed, and none could be fetched: {error.what}"
        raise BuildError(f"{what} (passed over {passed_over})" if passed_over else what, REMEDY) from error
    return _unpacked_compiler(folder)


def compiler_folder(tools: Path) -> Path:
    return tools / "cross-compiler"


def installed_compiler() -> tuple[CrossCompiler | None, str]:
    """The first on PATH that brings the C library too; else None, and why one was passed over."""
    passed_over = []
    for name in _COMPILERS:
        if found := shutil.which(name):
            compiler = CrossCompiler((found,))
            if compiler.library("libc.so.6") and compiler.library("libstdc++.so.6"):
                return compiler, ""
            passed_over.append(f"{found}, which brings no C or C++ library")
    return None, "; ".join(passed_over)


def describe_compiler(tools: Path) -> tuple[bool, str]:
    """Whether a runner for aarch64 Linux can be built here, and with what; for people."""
    installed, passed_over = installed_compiler()
    if installed is not None:
        return True, installed.command[0]
    if compiler_folder(tools).is_dir():
        return True, f"{_PACKAGE}, fetched before"
    if all(shutil.which(program) for program in PROGRAMS):
        return True, f"{_PACKAGE} of this machine's package mirror, fetched when it is needed (65 MB)"
    return False, f"passed over {passed_over}" if passed_over else "no compiler for aarch64 Linux, and no apt"


def _unpacked_compiler(folder: Path) -> CrossCompiler:
    compiler = folder / "usr" / "bin" / _COMPILERS[0]
    # `-B`, so that its own assembler and linker are taken, not those of the host.
    command = (str(compiler), f"--sysroot={folder}", f"-B{folder}/usr/bin/aarch64-linux-gnu-")
    libraries = [str(_libraries_the_host_lacks(folder)), os.environ.get("LD_LIBRARY_PATH", "")]
    return CrossCompiler(command, {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))})


def _libraries_the_host_lacks(folder: Path) -> Path:
    """A folder with links to the libraries that the compiler itself needs and this host has not.

    Not to all that was unpacked: a C library beside the loader of another build of it may not start.
    """
    links = folder / "host-libraries"
    links.mkdir(exist_ok=True)
    triplet = f"{platform.machine()}-linux-gnu"
    for place in (f"usr/lib/{triplet}", f"lib/{triplet}"):
        for library in (folder / place).glob("*.so*"):
            if any((Path("/") / there / triplet / library.name).exists() for there in ("usr/lib", "lib")):
                continue
            temporary = links / f".{library.name}.{os.getpid()}"
            temporary.symlink_to(library.resolve())
            temporary.replace(links / library.name)
    return links


# ExecuTorch


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
            f"{wheel.name} is damaged: {error}", "Try again; if it stays so, clear pip's cache."
        ) from error
    (destination / "RECORD").write_bytes(record)


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
