"""A C++ compiler for aarch64 Linux on a host with another CPU: an installed one, or one fetched without root.

Belongs here: where it comes from, and whether it works, which is tested by compiling something before it is
used. Such a host needs it for the emulated platform and for Android devices. `runner/` has what is built with
it.

The compiler is an installed one, otherwise Debian's or Ubuntu's package, unpacked into the tools folder.
Either includes the C and C++ libraries that the runner is linked with.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sme2_assets.distribution import cross_compiler_remedy
from sme2_assets.errors import BuildError, PackagesUnavailable
from sme2_assets.store import sha256_of_text, write_text_atomically
from sme2_assets.toolchain import Availability
from sme2_assets.toolchain.debian import PROGRAMS, RECORD, fetch_packages, libraries_the_host_lacks
from sme2_assets.toolchain.elf import AARCH64, machine_of

Log = Callable[[str], None]

_COMPILERS = ("aarch64-linux-gnu-g++", "aarch64-unknown-linux-gnu-g++", "aarch64-none-linux-gnu-g++")
_PACKAGE = "g++-aarch64-linux-gnu"
_COMPILE_SECONDS = 120
# Exercises the compiler, its assembler and linker, and the C and C++ libraries.
_PROGRAM = """\
#include <string>
int main(int count, char**) { return std::to_string(count).size() == 1 ? 0 : 1; }
"""


@dataclass(frozen=True)
class CrossCompiler:
    """How to run a C++ compiler for aarch64 Linux."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def library(self, name: str) -> Path | None:
        """The file of one of the libraries it links with."""
        return library_of(self.command, name, self.variables)


def library_of(
    compiler: tuple[str, ...], name: str, variables: Mapping[str, str] | None = None
) -> Path | None:
    """The file of a library that a compiler links with; None if it has none of that name."""
    done = subprocess.run(
        [*compiler, f"-print-file-name={name}"],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # A compiler that does not know a library answers with just the name.
    path = Path(done.stdout.strip())
    return path.resolve() if path.is_absolute() and path.is_file() else None


def find_cross_compiler(tools: Path, *, log: Log, fetched: bool = False) -> CrossCompiler:
    """An installed compiler, otherwise the distribution's, unpacked into `tools`; either is known to work.

    `fetched` uses the package's even where one is installed.
    """
    installed, passed_over = (None, "") if fetched else _installed_compiler(tools)
    if installed is not None:
        return installed
    if passed_over:
        log(f"runner: passed over {passed_over}")
    folder = compiler_folder(tools)
    behind = f" (passed over {passed_over})" if passed_over else ""
    try:
        fetch_packages([_PACKAGE], folder, with_dependencies=True, log=log)
    except PackagesUnavailable as error:
        what = f"no compiler for aarch64 Linux is installed, and none could be fetched: {error.what}{behind}"
        raise BuildError(what, cross_compiler_remedy()) from error
    compiler = _unpacked_compiler(folder)
    if fault := _fault(compiler, tools):
        raise BuildError(f"{_does_not_work(fault)}{behind}", cross_compiler_remedy())
    return compiler


def compiler_availability(tools: Path) -> Availability:
    """Whether a runner for aarch64 Linux can be built here, and with what. Fetches nothing."""
    installed, passed_over = _installed_compiler(tools)
    if installed is not None:
        return Availability(True, installed.command[0])
    behind = f" Passed over {passed_over}." if passed_over else ""
    folder = compiler_folder(tools)
    if folder.is_dir():
        fault = _fault(_unpacked_compiler(folder), tools)
        if not fault:
            return Availability(True, f"{_PACKAGE}, fetched before and tried")
        return Availability(False, f"{_does_not_work(fault)}.{behind}", cross_compiler_remedy())
    what = f"there is no compiler for aarch64 Linux to build its runner with.{behind}"
    if all(shutil.which(program) for program in PROGRAMS):
        return Availability(False, what, "Run `sme2 emulator`, which fetches one without root (65 MB).")
    return Availability(False, what, cross_compiler_remedy())


def compiler_folder(tools: Path) -> Path:
    return tools / "cross-compiler"


def _does_not_work(fault: str) -> str:
    return f"the compiler of {_PACKAGE} that was fetched does not work here: {fault}"


def _installed_compiler(tools: Path) -> tuple[CrossCompiler | None, str]:
    """The first on PATH that has the libraries and works; otherwise None, and why any were passed over."""
    passed_over = []
    for name in _COMPILERS:
        if found := shutil.which(name):
            compiler = CrossCompiler((found,))
            if not compiler.library("libc.so.6") or not compiler.library("libstdc++.so.6"):
                passed_over.append(f"{found}, which has no C or C++ library")
            elif fault := _fault(compiler, tools):
                passed_over.append(f"{found}, which does not work: {fault}")
            else:
                return compiler, ""
    return None, "; ".join(passed_over)


# Trying it


def _fault(compiler: CrossCompiler, tools: Path) -> str:
    """Why it cannot build a program for aarch64 Linux; empty if it can. Success is remembered."""
    if "%" in compiler.command[0]:
        return f"its path has a %, which GCC takes for something else: {compiler.command[0]}"
    remembered = tools / "cross-compiler.works"
    key = _identity(compiler, tools)
    with contextlib.suppress(OSError):
        if remembered.read_text().strip() == key:
            return ""
    fault = _try_out(compiler)
    if not fault:
        # If nothing can be written, it is tried again next time.
        with contextlib.suppress(OSError):
            write_text_atomically(remembered, key + "\n")
    return fault


def _identity(compiler: CrossCompiler, tools: Path) -> str:
    """Changes with the program, and with the packages it came from."""
    program = Path(compiler.command[0])
    try:
        stat = program.stat()
        packages = (compiler_folder(tools) / RECORD).read_text() if len(compiler.command) > 1 else ""
    except OSError:
        return "unknown"
    return sha256_of_text(*compiler.command, str(stat.st_size), str(stat.st_mtime_ns), packages)


def _try_out(compiler: CrossCompiler) -> str:
    """Compiles and links a program; returns what went wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix="sme2-cross-") as folder:
        source, program = Path(folder) / "program.cpp", Path(folder) / "program"
        source.write_text(_PROGRAM)
        try:
            done = subprocess.run(
                [*compiler.command, "-o", str(program), str(source)],
                env={**os.environ, **compiler.variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0 or not program.is_file():
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            return said[0] if said else f"it ended with exit code {done.returncode} and wrote no program"
        return "" if machine_of(program) == AARCH64 else "what it builds is not for aarch64"


# A fetched one


def _unpacked_compiler(folder: Path) -> CrossCompiler:
    compiler = folder / "usr" / "bin" / _COMPILERS[0]
    # `-B`, so that its own assembler and linker are used, not those of the host.
    command = (str(compiler), f"--sysroot={folder}", f"-B{folder}/usr/bin/aarch64-linux-gnu-")
    libraries = [str(libraries_the_host_lacks(folder)), os.environ.get("LD_LIBRARY_PATH", "")]
    return CrossCompiler(command, {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))})
