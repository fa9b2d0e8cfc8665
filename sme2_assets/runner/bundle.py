"""A runner that brings everything it needs: its loader and all libraries, in one folder.

Belongs here: which files a runner needs, and how they become one artifact. A bundle runs on any Linux kernel
for its CPU, even without glibc (Android) or with a different one (a machine over SSH), and under an emulator
on another CPU. It is started through its own loader:
`./ld-linux-aarch64.so.1 --library-path . ./sme2_runner`.

Stored like a runner, under the hash of all its files; `load_runner` reads it back.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sme2_assets.errors import BuildError, Sme2Error
from sme2_assets.evidence.device import AARCH64
from sme2_assets.runner.build import (
    BINARY_NAME,
    MANIFEST_NAME,
    MANIFEST_SCHEMA,
    NATIVE_DIR,
    RunnerBinary,
    Toolchain,
    build_runner,
    build_with,
    find_toolchain,
    load_runner,
    write_synced,
)
from sme2_assets.runner.cross import cross_toolchain
from sme2_assets.store import Store, one_at_a_time, sha256_of_file
from sme2_assets.targets.base import Program, Target
from sme2_assets.targets.host import host_arch
from sme2_assets.toolchain.cross_compiler import library_of
from sme2_assets.toolchain.elf import MACHINES, read_needs
from sme2_assets.toolchain.qemu import find_qemu
from sme2_assets.toolchain.sdk import Log, sdk_here

_START_SECONDS = 120


@dataclass(frozen=True)
class _File:
    """A file of the bundle: its path, and what it comes from."""

    source: Path
    origin: str


def build_bundle(
    artifacts: Path,
    *,
    log: Log,
    tools: Path | None = None,
    arch: str = AARCH64,
    cross: bool | None = None,
    fetched_compiler: bool = False,
    executorch: str = "",
    native_dir: Path = NATIVE_DIR,
) -> RunnerBinary:
    """The runner for Linux on `arch` with all it needs, built unless it already exists.

    On a Linux host with that CPU, it is made from the installed ExecuTorch and this host's libraries. For
    aarch64 elsewhere, or if `cross` is true, with a cross compiler and the aarch64 wheel, downloaded into
    `tools` (by default next to `artifacts`). `fetched_compiler` uses the package's cross compiler even where
    one is installed. `executorch` is another version than the installed one.
    """
    artifacts = Path(artifacts).resolve()
    tools = tools or artifacts.parent / "tools"
    if cross is None:
        cross = not _runs_here(arch)
    if cross and arch != AARCH64:
        raise BuildError(
            f"A runner for {arch} Linux cannot be built on this machine.", f"Build it on {arch} Linux."
        )
    toolchain = (
        cross_toolchain(tools, log=log, fetched_compiler=fetched_compiler, executorch=executorch)
        if cross
        else find_toolchain(sdk_here(executorch, tools, log=log))
    )
    runner = build_with(toolchain, artifacts, log=log, native_dir=native_dir)
    files = _closure(runner, toolchain, arch)
    hashes = {name: sha256_of_file(file.source) for name, file in files.items()}
    key = _key(hashes)
    final = artifacts / "runners" / key[:16]
    with one_at_a_time(final.parent / f".{final.name}.lock", "runner: waiting for another bundle", log):
        try:
            return load_runner(final)
        except BuildError:
            pass
        for leftover in final.parent.glob(f".bundle-{final.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staged = Path(tempfile.mkdtemp(prefix=f".bundle-{final.name}-", dir=final.parent))
        try:
            for name, file in files.items():
                shutil.copyfile(file.source, staged / name)
                (staged / name).chmod(0o755)
            _write_manifest(staged, runner, toolchain, files, hashes, key)
            staged.chmod(0o755)
            _try_out(load_runner(staged).program, tools, arch, log)
            shutil.rmtree(final, ignore_errors=True)
            staged.rename(final)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    bundle = replace(load_runner(final), cached=False)
    megabytes = sum((final / name).stat().st_size for name in files) / 1e6
    log(f"runner {final.name}: a bundle of {len(files)} files, {megabytes:.1f} MB")
    return bundle


def runner_for(target: Target, store: Store, *, log: Log, executorch: str = "") -> RunnerBinary:
    """The runner that a target needs: a bundle where it must bring its own libraries.

    `executorch` is a version; empty: the installed one.
    """
    if target.bundled:
        return build_bundle(
            store.artifacts, tools=store.tools, arch=target.bundle_arch, executorch=executorch, log=log
        )
    return build_runner(store.artifacts, sdk=sdk_here(executorch, store.tools, log=log), log=log)


def host_is_target() -> bool:
    return _runs_here(AARCH64)


def _runs_here(arch: str) -> bool:
    return (platform.system(), host_arch()) == ("Linux", arch)


def _key(hashes: dict[str, str]) -> str:
    listing = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(listing.encode()).hexdigest()


def _closure(runner: RunnerBinary, toolchain: Toolchain, arch: str) -> dict[str, _File]:
    """The runner and every library that it or another of them needs, including the loader."""
    files = {BINARY_NAME: _File(runner.path, "runner")}
    waiting = [BINARY_NAME]
    while waiting:
        for name in _needed(files[waiting.pop()].source, arch):
            if name not in files:
                files[name] = _library(name, runner, toolchain)
                waiting.append(name)
    return files


def _needed(path: Path, arch: str) -> Iterator[str]:
    try:
        needs = read_needs(path)
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{path} cannot be bundled: {error}", "Delete it, and build the runner again."
        ) from error
    if needs.machine != MACHINES[arch]:
        raise BuildError(
            f"{path} is not for {arch}", "This is a defect of the compiler's set-up: please report it."
        )
    yield from needs.libraries
    if needs.loader is not None:
        yield Path(needs.loader).name


def _library(name: str, runner: RunnerBinary, toolchain: Toolchain) -> _File:
    beside = runner.library_dir / name
    if beside.is_file():
        return _File(beside, f"ExecuTorch {toolchain.sdk.version}")
    system = library_of(toolchain.compiler, name, toolchain.variables)
    if system is None:
        raise BuildError(
            f"The runner needs {name}, and {toolchain.compiler_id} does not know where it is",
            "Use a compiler that brings its C and C++ libraries.",
        )
    return _File(system, f"{toolchain.compiler_id}: {system.name}")


def _write_manifest(
    folder: Path,
    runner: RunnerBinary,
    toolchain: Toolchain,
    files: dict[str, _File],
    hashes: dict[str, str],
    key: str,
) -> None:
    loader = next(name for name in files if name.startswith("ld-linux"))
    facts = {
        **json.loads(runner.manifest.read_text(encoding="utf-8")),
        "schema": MANIFEST_SCHEMA,
        "source_sha256": key,
        "runner": runner.path.parent.name,
        "pair": key,
        "cross_built": toolchain.is_cross,
        "library_dir": ".",
        "start": [f"./{loader}", "--library-path", ".", f"./{BINARY_NAME}"],
        "files": {
            name: {"sha256": hashes[name], "bytes": file.source.stat().st_size, "origin": file.origin}
            for name, file in files.items()
        },
    }
    write_synced(folder / MANIFEST_NAME, json.dumps(facts, indent=2) + "\n")


def _try_out(program: Program, tools: Path, arch: str, log: Log) -> None:
    """Starts the bundle once, without this host's environment; under the emulator on another CPU."""
    wrapper: list[str] = []
    if not _runs_here(arch):
        try:
            qemu = find_qemu(tools)
        except Sme2Error:
            qemu = None
        if qemu is None:
            log("runner: not tried out, as there is no emulator")
            return
        wrapper = [str(qemu.path)]
    command = [*wrapper, *program.command_in(str(program.folder)), "--version"]
    try:
        done = subprocess.run(
            command, env={}, capture_output=True, text=True, timeout=_START_SECONDS, check=False
        )
        told, code = done.stdout + done.stderr, done.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        told, code = str(error), -1
    if code != 0 or not told.startswith(BINARY_NAME):
        raise BuildError(
            f"The bundle does not start (exit code {code}): {told.strip()[:400]}",
            "This is a defect: please report it.",
        )
