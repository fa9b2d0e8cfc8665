"""Builds `sme2_runner` from a user's ExecuTorch checkout: for Android with the NDK, for macOS, for Linux.

ExecuTorch is configured with our presets (`presets.py`), built and installed into a folder that belongs to
this package; then the runner's sources are built against that. SME2 on and off are two binaries here. What
each was made from is recorded (`build_record.py`); two that differ in more than the SME switches are not a
pair.

A binary is stored like the wheel's runner, under the hash of all it is made from: `artifacts/runners/<key>/`
with `sme2_runner`, `manifest.json` and `build.json`. It appears there once everything has succeeded. An
interrupted build is continued by the next one of the same sources, and discarded by one of other sources.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform as host
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sme2_assets.errors import BuildError
from sme2_assets.runner.build import (
    BINARY_NAME,
    MANIFEST_NAME,
    MANIFEST_SCHEMA,
    Log,
    RunnerBinary,
    find_cmake_version,
    find_compiler,
    find_tool,
    first_line,
    load_runner,
    run_step,
    smoke_test,
    write_synced,
)
from sme2_assets.runner.build_record import (
    RECORD_NAME,
    BuildRecord,
    Difference,
    Tree,
    ask_cmake,
    differences,
    pair_difference,
    pair_hash,
    read_tree,
)
from sme2_assets.runner.checkout import CheckoutState, checkout_state
from sme2_assets.runner.kernels_in import BinaryKernels, kernels_in
from sme2_assets.runner.presets import platform_variables, user_presets
from sme2_assets.runner.source_request import (
    RUNNER_KIND,
    TRACE_KIND,
    BuildProblem,
    SourceRequest,
    ndk_version,
    problems,
)
from sme2_assets.store import Store, one_at_a_time, sha256_of_file, sha256_of_text

_FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "LDFLAGS")
_PROGRESS_S = 5.0


@dataclass(frozen=True)
class SourcePair:
    """The two arms of a platform, checked to differ only in the SME switches."""

    on: RunnerBinary
    off: RunnerBinary

    def of(self, sme2: str) -> RunnerBinary:
        return self.on if sme2 == "on" else self.off


# The plan


@dataclass(frozen=True)
class BuildStep:
    """One command of a build."""

    title: str
    command: list[str]
    folder: Path


@dataclass(frozen=True)
class Places:
    """Where a build happens."""

    work: Path

    @property
    def build(self) -> Path:
        return self.work / "executorch"

    @property
    def install(self) -> Path:
        return self.work / "install"

    @property
    def runner(self) -> Path:
        return self.work / "runner"

    @property
    def staged(self) -> Path:
        return self.work / "staged"


def executorch_steps(request: SourceRequest, sme2: str, places: Places) -> list[BuildStep]:
    """Configures, builds and installs ExecuTorch."""
    cmake, build = str(find_tool("cmake")), str(places.build)
    preset = request.preset(sme2)
    return [
        BuildStep(
            "configure ExecuTorch",
            [
                *(cmake, "--preset", preset.name, "-S", str(request.checkout), "-B", build),
                f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}",
                f"-DCMAKE_INSTALL_PREFIX={places.install}",
            ],
            request.checkout,
        ),
        BuildStep("build ExecuTorch", [cmake, "--build", build, "--parallel", _jobs()], places.work),
        BuildStep("install ExecuTorch", [cmake, "--install", build], places.work),
    ]


def runner_steps(request: SourceRequest, sme2: str, places: Places, version: str) -> list[BuildStep]:
    """Builds the runner against what `executorch_steps` installed."""
    cmake, build = str(find_tool("cmake")), str(places.runner)
    toolchain = request.preset(sme2).toolchain_file
    variables = {
        "CMAKE_MAKE_PROGRAM": str(find_tool("ninja")),
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        # Named explicitly: Android's toolchain file lets CMake look for packages only inside the NDK.
        "executorch_DIR": str(places.install / "lib" / "cmake" / "ExecuTorch"),
        "SME2_EXECUTORCH_CHECKOUT": str(request.checkout),
        "SME2_EXECUTORCH_VERSION": version,
        **({"CMAKE_TOOLCHAIN_FILE": toolchain} if toolchain else {}),
        **platform_variables(request.platform),
    }
    return [
        BuildStep(
            "configure the runner",
            [
                *(cmake, "-G", "Ninja", "-S", str(request.native_dir), "-B", build),
                *(f"-D{name}={value}" for name, value in variables.items()),
            ],
            places.work,
        ),
        BuildStep("build the runner", [cmake, "--build", build, "--parallel", _jobs()], places.work),
        BuildStep(
            "install the runner", [cmake, "--install", build, "--prefix", str(places.staged)], places.work
        ),
    ]


def _jobs() -> str:
    return str(os.cpu_count() or 1)


@dataclass(frozen=True)
class BuildPlan:
    """What a build of a pair would do, without doing it."""

    steps: dict[str, list[BuildStep]]
    records: dict[str, BuildRecord]
    problems: list[BuildProblem]

    @property
    def differences(self) -> list[Difference]:
        return differences(self.records["on"], self.records["off"])

    @property
    def faults(self) -> list[Difference]:
        return pair_difference(self.records["on"], self.records["off"])


def plan(request: SourceRequest, artifacts: Path) -> BuildPlan:
    """The commands and the manifests of both arms, as far as they are known before building."""
    steps, records = {}, {}
    try:
        state = checkout_state(request.checkout)
    except BuildError:
        state = CheckoutState(commit="unknown", version=None, diff_sha256=None)
    for sme2 in ("off", "on"):
        key = source_key(request, sme2, state)
        places = Places(artifacts.resolve() / "runners" / _work_name(request, sme2, key))
        steps[sme2] = [
            *executorch_steps(request, sme2, places),
            *runner_steps(request, sme2, places, state.version or "unknown"),
        ]
        planned = Tree(cache=request.preset(sme2).cache)
        records[sme2] = _record(request, sme2, state, {"executorch": planned})
    return BuildPlan(steps, records, problems(request))


def _ndk(request: SourceRequest) -> str | None:
    try:
        return ndk_version(request.ndk) if request.platform == "android" else None
    except BuildError:
        return "unknown"


# The build


def build_source_runner(artifacts: Path, request: SourceRequest, sme2: str, *, log: Log) -> RunnerBinary:
    """One arm from source, built unless the same sources, tools and options were built before."""
    if found := problems(request):
        others = "".join(f"\nAlso: {problem.what}\n  What to do: {problem.remedy}" for problem in found[1:])
        raise BuildError(found[0].what, found[0].remedy + others)
    runners = Path(artifacts).resolve() / "runners"
    runners.mkdir(parents=True, exist_ok=True)
    # One build from a checkout at a time: it has only one user-presets file.
    lock = runners / f"{_work_name(request)}.lock"
    with one_at_a_time(lock, "runner: waiting for another build from the same checkout", log):
        state = checkout_state(request.checkout)
        key = source_key(request, sme2, state)
        final = runners / key[:16]
        if final.exists() and (cached := _cached(final, log)) is not None:
            log(f"runner {final.name}: already built")
            return cached
        work = runners / _work_name(request, sme2, key)
        _remove_other_builds(work)
        return _build(request, sme2, state, key, Places(work), final, log)


def _work_name(request: SourceRequest, *arm: str) -> str:
    """The folder that an arm is built in; without an arm, the common prefix of a checkout's folders."""
    checkout = sha256_of_text(str(request.checkout.resolve()))[:8]
    return "-".join((f".source-{checkout}", *((request.platform, arm[0], arm[1][:16]) if arm else ())))


def source_key(request: SourceRequest, sme2: str, state: CheckoutState) -> str:
    """The hash of everything that determines the binary."""
    preset = request.preset(sme2)
    parts = {
        "checkout": asdict(state),
        # The folder counts, because debug information and assertions name files by their path.
        "folder": str(request.checkout.resolve()),
        "preset": preset.as_json(),
        "ndk": _ndk(request),
        "compilers": _compilers(request),
        "cmake": find_cmake_version(find_tool("cmake")),
        "runner": folder_hash(request.native_dir),
        "environment": _environment(),
        "machine": f"{host.system()} {host.machine()}",
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _compiler_variables(request: SourceRequest) -> dict[str, str]:
    """`CXX` and `CC` for the steps. Android's come from the NDK, whatever the environment says."""
    if request.platform == "android":
        return {}
    cxx = shlex.join(find_compiler())
    return {"CXX": cxx, **({"CC": os.environ["CC"]} if os.environ.get("CC") else {})}


def _compilers(request: SourceRequest) -> dict[str, str]:
    variables = _compiler_variables(request)
    return {name: first_line([*shlex.split(command), "--version"]) for name, command in variables.items()}


def _environment() -> dict[str, str]:
    # ExecuTorch takes headers and code generation from the installed torch.
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return {"torch": torch, **{name: os.environ.get(name, "") for name in _FLAG_VARIABLES}}


def folder_hash(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return sha256_of_text(
        *(f"{path.relative_to(folder).as_posix()} {sha256_of_file(path)}" for path in files)
    )


def _cached(final: Path, log: Log) -> RunnerBinary | None:
    try:
        binary = load_runner(final)
        BuildRecord.read(final)
    except BuildError as error:
        log(f"runner {final.name}: the stored one is not usable, building again ({error.what})")
        return None
    return binary


def _remove_other_builds(work: Path) -> None:
    """Removes what builds of other states of the sources left. The lock of the checkout is held."""
    prefix = work.name.rsplit("-", 1)[0]
    for other in work.parent.glob(f"{prefix}-*"):
        if other != work:
            shutil.rmtree(other, ignore_errors=True)


def _build(
    request: SourceRequest,
    sme2: str,
    state: CheckoutState,
    key: str,
    places: Places,
    final: Path,
    log: Log,
) -> RunnerBinary:
    started, started_at = time.monotonic(), _now()
    log_file = final.parent / "logs" / f"{final.name}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.unlink(missing_ok=True)
    log(
        f"runner {final.name}: building ExecuTorch {state.version} for {request.platform}, SME2 {sme2}; "
        f"log: {log_file}"
    )
    shutil.rmtree(places.staged, ignore_errors=True)
    for build in (places.build, places.runner):
        build.mkdir(parents=True, exist_ok=True)
        ask_cmake(build)
    variables = _compiler_variables(request)
    quiet = _every_few_seconds(log)
    with user_presets(request.checkout, [request.preset("on"), request.preset("off")]):
        for step in executorch_steps(request, sme2, places):
            run_step(step.title, step.command, variables, log_file, quiet, step.folder)
    _require_package(places, log_file)
    for step in runner_steps(request, sme2, places, str(state.version)):
        run_step(step.title, step.command, variables, log_file, quiet, step.folder)
    if checkout_state(request.checkout) != state:
        raise BuildError(
            f"{request.checkout} changed while it was built", "Leave it alone until the build is finished."
        )
    trees = {
        name: read_tree(folder, _named_places(request, places))
        for name, folder in (("executorch", places.build), ("runner", places.runner))
    }
    binary = places.staged / BINARY_NAME
    kernels = kernels_in(binary)
    record = replace(
        _record(request, sme2, state, trees),
        binary_sha256=sha256_of_file(binary),
        kernels={**asdict(kernels), "described": kernels.described()},
        started_at=started_at,
        finished_at=_now(),
    )
    compiler = smoke_test(binary) if request.runs_here else _compiler_of(trees["runner"])
    facts = {
        "schema": MANIFEST_SCHEMA,
        "sha256": record.binary_sha256,
        "source_sha256": key,
        "pair": pair_hash(record),
        "executorch_version": state.version,
        "compiler": compiler,
        "compiler_id": trees["runner"].compilers.get("CXX", "unknown"),
        "cmake_version": record.cmake,
        "platform": request.platform,
        "sme2": sme2,
        "trace": request.trace,
        "build_seconds": round(time.monotonic() - started, 3),
        # All of ExecuTorch is linked in; anything else that was installed is next to the binary.
        "library_dir": ".",
        "files": {path.name: {"sha256": sha256_of_file(path)} for path in sorted(places.staged.iterdir())},
    }
    write_synced(places.staged / RECORD_NAME, record.to_json())
    write_synced(places.staged / MANIFEST_NAME, json.dumps(facts, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)
    places.staged.rename(final)
    shutil.rmtree(places.work, ignore_errors=True)
    built = replace(load_runner(final), cached=False)
    log(f"runner {final.name}: built in {built.build_seconds:.0f} s; {kernels.described()}")
    return built


def _record(
    request: SourceRequest,
    sme2: str,
    state: CheckoutState,
    trees: dict[str, Tree],
) -> BuildRecord:
    return BuildRecord(
        platform=request.platform,
        sme2=sme2,
        trace=request.trace,
        preset=request.preset(sme2).name,
        checkout={
            "commit": state.commit,
            "version": state.version,
            "dirty": state.dirty,
            "diff_sha256": state.diff_sha256,
            "kleidiai": state.kleidiai,
            "submodules": state.submodules,
        },
        ndk=_ndk(request),
        cmake=find_cmake_version(find_tool("cmake")),
        runner_sources_sha256=folder_hash(request.native_dir),
        environment=_environment(),
        trees=trees,
    )


def _named_places(request: SourceRequest, places: Places) -> Mapping[str, Path]:
    ndk = {"ndk": request.ndk} if request.ndk else {}
    return {
        "build": places.build,
        "install": places.install,
        "runner build": places.runner,
        "runner": request.native_dir,
        "checkout": request.checkout,
        **ndk,
    }


def _require_package(places: Places, log_file: Path) -> None:
    package = places.install / "lib" / "cmake" / "ExecuTorch" / "executorch-config.cmake"
    if not package.is_file():
        raise BuildError(
            f"ExecuTorch installed no CMake package ({package})",
            f"Its layout may have changed: see {log_file}, and try release v1.5.1.",
        )


def _compiler_of(tree: Tree) -> str:
    words = tree.compilers.get("CXX", "unknown").split()
    return " ".join(words[:2]).lower()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _every_few_seconds(log: Log) -> Log:
    """Passes on a line of progress every few seconds: ExecuTorch has thousands of files."""
    last = 0.0

    def pass_on(line: str) -> None:
        nonlocal last
        progress = re.search(r"\[(\d+)/(\d+)\]", line)
        if progress and progress[1] != progress[2] and time.monotonic() - last < _PROGRESS_S:
            return
        last = time.monotonic()
        log(line)

    return pass_on


# The pair


def remember(store: Store, request: SourceRequest, sme2: str, binary: RunnerBinary) -> None:
    """Makes a binary the current one of its platform and state. Trace builds, never timed, are kept apart."""
    store.set_current(request.kind, f"{request.platform}-sme2_{sme2}", binary.path.parent.name)


def current_source_runner(
    store: Store, platform: str, sme2: str, *, trace: bool = False
) -> RunnerBinary | None:
    """The binary of one arm that was built last; None if there is none."""
    name = store.current(TRACE_KIND if trace else RUNNER_KIND, f"{platform}-sme2_{sme2}")
    return load_runner(store.artifacts / "runners" / name) if name else None


def source_pair(store: Store, platform: str, *, trace: bool = False) -> SourcePair:
    """Both arms of a platform. A missing one, or a difference beyond the SME switches, is a BuildError."""
    arms = {sme2: current_source_runner(store, platform, sme2, trace=trace) for sme2 in ("on", "off")}
    build = f"Build both: sme2 build-runner --checkout DIR --platform {platform}" + (
        " --trace" if trace else ""
    )
    on, off = arms["on"], arms["off"]
    if on is None or off is None:
        missing = " and ".join(sme2 for sme2, binary in arms.items() if binary is None)
        raise BuildError(f"There is no runner built from source for {platform} with SME2 {missing}", build)
    if faults := record_faults(on, off):
        listed = "\n".join(f"  {fault}" for fault in faults[:20])
        more = f"\n  and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise BuildError(
            f"The two runners for {platform} are not a pair: they differ in more than the SME switches."
            f"\n{listed}{more}",
            build + ", without changing the checkout or the tools in between.",
        )
    return SourcePair(on, off)


def record_faults(on: RunnerBinary, off: RunnerBinary) -> list[Difference]:
    """Why two stored runners are not a pair."""
    return pair_difference(BuildRecord.read(on.path.parent), BuildRecord.read(off.path.parent))


def kernel_fault(binary: RunnerBinary, sme2: str) -> str | None:
    """Why a stored runner does not fit its SME2 state, judged by the binary itself."""
    found: BinaryKernels = kernels_in(binary.path)
    if (fault := found.fault(sme2)) is None:
        return None
    if sme2 == "on":
        return (
            f"{fault}. The compiler may be too old for SME2 (try GCC 14, Clang 18 or the newest NDK), or the "
            "checkout's XNNPACK has no such kernels"
        )
    return fault


def build_pair(
    store: Store,
    request: SourceRequest,
    *,
    log: Log,
    states: tuple[str, ...] = ("off", "on"),
) -> dict[str, RunnerBinary]:
    """Builds the arms one after the other and makes them current."""
    built = {}
    for sme2 in states:
        built[sme2] = build_source_runner(store.artifacts, request, sme2, log=log)
    for sme2, binary in built.items():
        remember(store, request, sme2, binary)
    return built
