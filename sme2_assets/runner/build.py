"""Builds `sme2_runner` from `native/` against the C++ SDK inside an ExecuTorch wheel.

A binary is stored under the hash of everything it was made from, so the same sources and tools are never
built twice: `artifacts/runners/<source_sha256[:16]>/` with `sme2_runner` and `manifest.json`. A build happens
in a folder of its own that is renamed into place once everything has succeeded: a killed build leaves nothing
that looks finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sme2_assets.distribution import installing
from sme2_assets.errors import BuildError
from sme2_assets.store import one_at_a_time, sha256_of_file
from sme2_assets.targets.base import Program
from sme2_assets.targets.lease import held_leases
from sme2_assets.toolchain.sdk import HERE, Log, Sdk, installed_sdk

NATIVE_DIR = Path(__file__).resolve().parent / "native"
BINARY_NAME = "sme2_runner"
MANIFEST_NAME = "manifest.json"
MINIMUM_CMAKE = (3, 28)
MANIFEST_SCHEMA = 1
# Where in the folder of a build the finished runner is put together.
STAGED = "staged"
_PROGRESS_S = 2.0


@dataclass(frozen=True)
class RunnerBinary:
    """A built runner and what it was made from."""

    path: Path
    sha256: str
    source_sha256: str
    executorch_version: str
    compiler: str
    cmake_version: str
    build_seconds: float
    cached: bool
    library_dir: Path
    manifest: Path
    # Of the wheel's list of files and their hashes; empty for a build from source.
    executorch_record_sha256: str
    # What comparable runners share: the hash of the one binary that serves both arms, or of everything that a
    # pair built from source was made from, except the SME switches.
    pair: str
    # A bundle's files and its start command; empty for a runner that finds its libraries by their path.
    files: tuple[str, ...] = ()
    start: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        """What must be present where it runs: a bundle's files, otherwise just the binary."""
        name = self.path.name
        return Program(self.path.parent, self.files or (name,), self.start or (f"./{name}",))


@dataclass(frozen=True)
class Toolchain:
    """What a build uses, found before anything is started."""

    sdk: Sdk
    cmake: Path
    cmake_version: str
    ninja: Path
    compiler: tuple[str, ...]
    compiler_id: str
    # The system and machine that the binary is for.
    target: str = HERE
    # What a build for another machine adds: options for the configure step, variables for every step.
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_cross(self) -> bool:
        """Whether the binary is for another machine, or is built as if it were."""
        return bool(self.options)

    @property
    def library_dir(self) -> Path:
        return self.sdk.folder / "lib"


def build_runner(
    artifacts: Path, *, log: Log, native_dir: Path = NATIVE_DIR, sdk: Sdk | None = None
) -> RunnerBinary:
    """The runner for this machine, built unless it already exists; by default of the installed ExecuTorch."""
    return build_with(find_toolchain(sdk), artifacts, log=log, native_dir=native_dir)


def build_with(tools: Toolchain, artifacts: Path, *, log: Log, native_dir: Path = NATIVE_DIR) -> RunnerBinary:
    """The runner that these tools make, built unless it already exists."""
    source_sha256 = source_hash(native_dir, tools)
    runners = Path(artifacts).resolve() / "runners"
    final = runners / source_sha256[:16]
    runners.mkdir(parents=True, exist_ok=True)
    lock = runners / f".{final.name}.lock"
    with one_at_a_time(lock, "runner: waiting for another build of the same sources", log):
        if (cached := usable(final, log)) is not None:
            return cached
        _remove_leftovers(runners, final.name)
        return _build(final, native_dir, tools, source_sha256, log)


def load_runner(directory: Path) -> RunnerBinary:
    """Reads back a runner that `build_runner` stored, and checks that the binary has not changed."""
    directory = Path(directory).resolve()
    manifest = directory / MANIFEST_NAME
    remedy = f"Delete {directory} and build the runner again."
    try:
        facts = json.loads(manifest.read_text(encoding="utf-8"))
        binary = RunnerBinary(
            path=directory / BINARY_NAME,
            sha256=str(facts["sha256"]),
            source_sha256=str(facts["source_sha256"]),
            executorch_version=str(facts["executorch_version"]),
            executorch_record_sha256=str(facts.get("executorch_record_sha256", "")),
            compiler=str(facts["compiler"]),
            cmake_version=str(facts["cmake_version"]),
            build_seconds=float(facts["build_seconds"]),
            cached=True,
            library_dir=directory / facts["library_dir"],
            manifest=manifest,
            files=tuple(facts.get("files", ())),
            start=tuple(facts.get("start", ())),
            pair=str(facts.get("pair", facts["sha256"])),
        )
        sha256 = sha256_of_file(binary.path)
        changed = [
            name
            for name, file in facts.get("files", {}).items()
            if sha256_of_file(directory / name) != file["sha256"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{directory} holds no complete runner ({error})", remedy) from error
    if sha256 != binary.sha256:
        raise BuildError(f"{binary.path} is not the binary that its manifest describes", remedy)
    if changed:
        raise BuildError(f"{directory / changed[0]} is not the file that its manifest describes", remedy)
    if not binary.library_dir.is_dir():
        raise BuildError(
            f"The libraries that {binary.path} was linked with are gone: {binary.library_dir}",
            remedy,
        )
    return binary


# What a build needs


def find_toolchain(sdk: Sdk | None = None) -> Toolchain:
    """Everything a build needs, or a BuildError that says what is missing and how to get it."""
    sdk = sdk or installed_sdk()
    cmake = find_tool("cmake")
    cmake_version = find_cmake_version(cmake)
    compiler = find_compiler()
    return Toolchain(
        sdk=sdk,
        cmake=cmake,
        cmake_version=cmake_version,
        ninja=find_tool("ninja"),
        compiler=compiler,
        compiler_id=first_line([*compiler, "--version"]),
    )


def find_compiler() -> tuple[str, ...]:
    """The C++ compiler's command: $CXX if set, otherwise the first of the usual names."""
    if given := os.environ.get("CXX", "").strip():
        command = tuple(shlex.split(given))
        if shutil.which(command[0]) is None:
            raise BuildError(
                f"The C++ compiler named by CXX was not found: {given}", "Set CXX to a compiler, or unset it."
            )
        return command
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return (found,)
    raise BuildError(
        "No C++ compiler is installed (looked for c++, g++, clang++)",
        f"Install one: {installing('compiler')}",
    )


def find_tool(name: str) -> Path:
    """A tool from this Python environment (the PyPI package of that name) or from PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    if os.access(beside, os.X_OK):
        return beside
    if found := shutil.which(name):
        return Path(found)
    raise BuildError(f"{name} is not installed", f"Install it: {sys.executable} -m pip install {name}")


def find_cmake_version(cmake: Path) -> str:
    line = first_line([str(cmake), "--version"])
    match = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", line)
    if match is None:
        raise BuildError(f"{cmake} does not say its version: {line!r}", "Install a working CMake.")
    if (int(match[1]), int(match[2])) < MINIMUM_CMAKE:
        wanted = ".".join(map(str, MINIMUM_CMAKE))
        raise BuildError(
            f"{cmake} is CMake {match[0]}, the ExecuTorch SDK needs {wanted} or newer",
            f"Install a newer one: {sys.executable} -m pip install 'cmake>={wanted}'",
        )
    return match[0]


def first_line(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"{shlex.join(command)} does not run: {error}", "Install it again, or choose another."
        ) from error
    return (done.stdout.splitlines() or [""])[0].strip()


# The key


def source_hash(native_dir: Path, tools: Toolchain) -> str:
    """The hash of everything that determines the binary."""
    digest = hashlib.sha256()

    def add(name: str, value: str | bytes) -> None:
        # Lengths keep two different lists of parts from concatenating to the same bytes.
        data = value.encode() if isinstance(value, str) else value
        digest.update(f"{name}:{len(data)}\n".encode() + data)

    sources = [p for p in sorted(native_dir.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    if not sources:
        raise BuildError(
            f"The runner's sources are not in {native_dir}", "Check that the installation is complete."
        )
    for path in sources:
        add(path.relative_to(native_dir).as_posix(), path.read_bytes())
    add("executorch", tools.sdk.version)
    add("executorch RECORD", tools.sdk.record_sha256)
    if not tools.is_cross:
        # The binary finds the libraries by this path; one for another machine brings them along.
        add("library folder", str(tools.library_dir))
    add("compiler", tools.compiler_id)
    for variable in ("CXXFLAGS", "LDFLAGS"):
        add(variable, {**os.environ, **tools.variables}.get(variable, ""))
    add("machine", tools.target)
    if tools.is_cross:
        # By name: where it was downloaded to does not matter, so a data folder can be moved.
        add("cross", shlex.join([Path(tools.compiler[0]).name, *tools.options]))
    return digest.hexdigest()


# The build


def _build(final: Path, native_dir: Path, tools: Toolchain, source_sha256: str, log: Log) -> RunnerBinary:
    log(f"runner {final.name}: building with {tools.compiler_id}, ExecuTorch {tools.sdk.version}")

    def facts(staged: Path) -> dict[str, object]:
        return {
            "source_sha256": source_sha256,
            "executorch_version": tools.sdk.version,
            "executorch_record_sha256": tools.sdk.record_sha256,
            "compiler": tools.compiler_id if tools.is_cross else smoke_test(staged / BINARY_NAME),
            "compiler_id": tools.compiler_id,
            "cmake_version": tools.cmake_version,
            "machine": tools.target.split()[1],
            "system": tools.target.split()[0],
            "library_dir": str(tools.library_dir),
        }

    work = Path(tempfile.mkdtemp(prefix=f".build-{final.name}-", dir=final.parent))
    try:
        steps = _steps(native_dir, work / "cmake", work / STAGED, tools)
        variables = {"CXX": shlex.join(tools.compiler), **tools.variables}
        return run_steps(steps, variables, work, final, facts, log)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_steps(
    steps: Iterable[tuple[str, list[str]]],
    variables: Mapping[str, str],
    work: Path,
    final: Path,
    facts: Callable[[Path], Mapping[str, object]],
    log: Log,
) -> RunnerBinary:
    """Runs the steps, the last of which installs a runner in `work`, and stores it as `final`.

    `facts` are those of its manifest that are not read from the binary itself, once it is there.
    """
    started = time.monotonic()
    log_file = final.parent / "logs" / f"{final.name}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.unlink(missing_ok=True)
    staged = work / STAGED
    shutil.rmtree(staged, ignore_errors=True)
    for title, command in steps:
        _run_step(title, command, variables, log_file, log)
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "sha256": sha256_of_file(staged / BINARY_NAME),
        **facts(staged),
        "build_seconds": round(time.monotonic() - started, 3),
    }
    write_synced(staged / MANIFEST_NAME, json.dumps(manifest, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)
    staged.rename(final)
    binary = replace(load_runner(final), cached=False)
    log(f"runner {final.name}: built in {binary.build_seconds:.1f} s")
    return binary


def _steps(native_dir: Path, build: Path, staged: Path, tools: Toolchain) -> Iterator[tuple[str, list[str]]]:
    cmake = str(tools.cmake)
    yield (
        "configure",
        [
            cmake,
            *("-G", "Ninja", "-S", str(native_dir), "-B", str(build)),
            f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
            f"-DCMAKE_PREFIX_PATH={tools.sdk.folder}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DSME2_EXECUTORCH_VERSION={tools.sdk.version}",
            *tools.options,
        ],
    )
    yield "compile", [cmake, "--build", str(build), "--parallel", str(min(os.cpu_count() or 1, 8))]
    yield "install", [cmake, "--install", str(build), "--prefix", str(staged)]


def _run_step(title: str, command: list[str], variables: Mapping[str, str], log_file: Path, log: Log) -> None:
    """Runs one step with its output in the log file, and a line of progress to `log` every few seconds."""
    log(f"runner: {title}")
    environment = {**os.environ, **variables}
    last_lines: deque[str] = deque(maxlen=25)
    with log_file.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {shlex.join(command)}\n")
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # If this process is killed, nobody measures while the compiler still runs.
            pass_fds=held_leases(),
        )
        assert process.stdout is not None
        try:
            told = 0.0
            for line in process.stdout:
                sink.write(line)
                last_lines.append(line.rstrip())
                if re.match(r"\[\d+/\d+\]", line) and time.monotonic() - told > _PROGRESS_S:
                    log(f"runner: {line.strip()}")
                    told = time.monotonic()
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status != 0:
        raise BuildError(
            f"The runner's {title} step failed (exit code {status}). Its last lines:\n"
            + "\n".join(last_lines),
            f"The whole log is in {log_file}.",
        )


def smoke_test(binary: Path) -> str:
    """Starts the new binary once: it must find its libraries and print its version. Returns its compiler."""
    line = first_line([str(binary), "--version"])
    match = re.fullmatch(r"sme2_runner \S+ \(executorch \S+, (.+)\)", line)
    if match is None:
        raise BuildError(
            f"The new runner answers --version with {line!r}", "This is a defect: please report it."
        )
    return match[1]


def usable(final: Path, log: Log) -> RunnerBinary | None:
    """The runner that is stored there; None, and why, if there is none that can be used."""
    if not final.exists():
        return None
    try:
        binary = load_runner(final)
    except BuildError as error:
        log(f"runner {final.name}: the stored one is not usable, building again ({error.what})")
        return None
    log(f"runner {final.name}: already built")
    return binary


def _remove_leftovers(runners: Path, key: str) -> None:
    # The lock is held, so a build folder with this key belongs to a process that died.
    for leftover in runners.glob(f".build-{key}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
