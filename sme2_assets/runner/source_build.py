"""Builds `sme2_runner` from a user's ExecuTorch checkout: for Android with the NDK, for macOS, for Linux.

ExecuTorch's own CMake project is built as a part of the runner's, once with XNNPACK's SME kernels and once
without; `native/CMakePresets.json` has the options of both. What each arm was made from is recorded
(`pairs.py`); two that differ in more than the SME switches are not a pair.

An arm is stored like the wheel's runner, with its record as `build.json`, under the hash of all it is made
from: `artifacts/runners/<hash>-on`. The next build of the same sources continues an interrupted one; a build
of others discards it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform as host
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sme2_assets.errors import BuildError, Sme2Error
from sme2_assets.runner.build import (
    BINARY_NAME,
    NATIVE_DIR,
    STAGED,
    RunnerBinary,
    find_cmake_version,
    find_compiler,
    find_tool,
    first_line,
    run_steps,
    smoke_test,
    usable,
    write_synced,
)
from sme2_assets.runner.checkout import checkout_problems, checkout_state
from sme2_assets.runner.pairs import RECORD_NAME, RUNNER_KIND, TRACE_KIND, configured, sme_kernels
from sme2_assets.store import Store, one_at_a_time, sha256_of_file, sha256_of_text
from sme2_assets.toolchain.sdk import Log

PRESETS_NAME = "CMakePresets.json"
# Public builds of ExecuTorch with SME2 use this one or newer.
MINIMUM_NDK = 26

_HOSTS = {"android": ("Linux", "Darwin"), "mac": ("Darwin",), "linux": ("Linux",)}
_NDK_VARIABLES = ("ANDROID_NDK", "ANDROID_NDK_HOME", "ANDROID_NDK_ROOT")
_FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "LDFLAGS")


@dataclass(frozen=True)
class SourceRequest:
    """What to build: one platform, from one checkout."""

    checkout: Path
    platform: str
    ndk: Path | None = None
    trace: bool = False
    native_dir: Path = NATIVE_DIR
    """The sources of the runner, with the presets."""

    @classmethod
    def of(
        cls, checkout: Path | str, platform: str, *, ndk: Path | str | None = None, trace: bool = False
    ) -> SourceRequest:
        """With paths made absolute, and the NDK looked for where Android's tools expect one."""
        if platform not in _HOSTS:
            raise BuildError(
                f"{platform} is not a platform to build for",
                f"Build for one of {', '.join(_HOSTS)}. The emulated platform runs the wheel's runner.",
            )
        if not str(checkout):
            raise BuildError("No checkout is named", "Name the folder of an ExecuTorch clone.")
        named = ndk or next((os.environ[name] for name in _NDK_VARIABLES if os.environ.get(name)), None)
        found = Path(named).expanduser().absolute() if named and platform == "android" else None
        return cls(Path(checkout).expanduser().absolute(), platform, found, trace, NATIVE_DIR)

    def preset(self, sme2: str) -> str:
        return f"{self.platform}-{sme2}{'-trace' if self.trace else ''}"

    @property
    def kind(self) -> str:
        return TRACE_KIND if self.trace else RUNNER_KIND

    @property
    def runs_here(self) -> bool:
        return (self.platform, host.system()) in (("linux", "Linux"), ("mac", "Darwin"))


# Before any work


def problems(request: SourceRequest) -> list[Sme2Error]:
    """Everything that would stop a build."""
    looks: tuple[Callable[[], object], ...] = (
        lambda: _require_host(request.platform),
        lambda: find_cmake_version(find_tool("cmake")),
        lambda: find_tool("ninja"),
        lambda: ndk_version(request.ndk) if request.platform == "android" else find_compiler(),
        lambda: found.extend(checkout_problems(request.checkout)),
    )
    found: list[Sme2Error] = []
    for look in looks:
        try:
            look()
        except Sme2Error as error:
            found.append(error)
    return found


def _require_host(platform: str) -> None:
    if host.system() not in _HOSTS[platform]:
        where = " or ".join(_HOSTS[platform]).replace("Darwin", "macOS")
        raise BuildError(
            f"A runner for {platform} cannot be built on {host.system()}", f"Build it on {where}."
        )


def ndk_version(ndk: Path | None) -> str:
    """The version that the NDK states. A missing, broken or old one is a BuildError."""
    get = "Get one with Android Studio's SDK manager or `sdkmanager 'ndk;28.2.13676358'`"
    if ndk is None:
        raise BuildError("No Android NDK is named", f"{get}, and name it: --ndk DIR, or $ANDROID_NDK.")
    properties = ndk / "source.properties"
    for needed in (properties, ndk / "build" / "cmake" / "android.toolchain.cmake"):
        if not needed.is_file():
            raise BuildError(f"{ndk} is not an Android NDK: there is no {needed}", f"{get}.")
    match = re.search(
        r"^Pkg\.Revision\s*=\s*((\d+)\S*)", properties.read_text(encoding="utf-8"), re.MULTILINE
    )
    if match is None:
        raise BuildError(f"{properties} names no Pkg.Revision", f"{get}.")
    if int(match[2]) < MINIMUM_NDK:
        raise BuildError(
            f"{ndk} is NDK {match[1]}; r{MINIMUM_NDK} is the oldest that is known to build SME2 kernels",
            f"{get}.",
        )
    return match[1]


def build_steps(request: SourceRequest, sme2: str, work: Path) -> Iterator[tuple[str, list[str]]]:
    """Title and command of each step that builds an arm in the folder `work`."""
    cmake, build = str(find_tool("cmake")), str(work / "cmake")
    yield (
        "configure",
        [
            *(cmake, "--preset", request.preset(sme2), "-S", str(request.native_dir), "-B", build),
            f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}",
            f"-DPYTHON_EXECUTABLE={sys.executable}",
            f"-DSME2_EXECUTORCH_CHECKOUT={request.checkout}",
        ],
    )
    yield "build", [cmake, "--build", build, "--parallel", str(os.cpu_count() or 1)]
    yield "install", [cmake, "--install", build, "--prefix", str(work / STAGED)]


# The build


def build_pair(store: Store, request: SourceRequest, *, log: Log) -> dict[str, RunnerBinary]:
    """Builds the arms one after the other and makes them current."""
    built = {sme2: build_source_runner(store.artifacts, request, sme2, log=log) for sme2 in ("off", "on")}
    for sme2, binary in built.items():
        remember(store, request, sme2, binary)
    return built


def remember(store: Store, request: SourceRequest, sme2: str, binary: RunnerBinary) -> None:
    """Makes a binary the current one of its platform and state. Trace builds, never timed, are kept apart."""
    store.set_current(request.kind, f"{request.platform}-sme2_{sme2}", binary.path.parent.name)


def build_source_runner(artifacts: Path, request: SourceRequest, sme2: str, *, log: Log) -> RunnerBinary:
    """One arm from source, built unless the same sources, tools and options were built before."""
    if found := problems(request):
        others = "".join(f"\nAlso: {error}" for error in found[1:])
        raise BuildError(found[0].what, f"{found[0].remedy}{others}")
    runners = Path(artifacts).resolve() / "runners"
    runners.mkdir(parents=True, exist_ok=True)
    # One after the other: each takes all cores, and ExecuTorch builds some libraries inside its checkout.
    with one_at_a_time(runners / ".source.lock", "runner: waiting for another build from source", log):
        sources = _sources(request)
        # The folder counts, because debug information and assertions name files by their path.
        key = sha256_of_text(json.dumps(sources, sort_keys=True), str(request.checkout.resolve()))
        final = runners / f"{key[:16]}-{sme2}"
        return usable(final, log) or _build(request, sme2, sources, key, final, log)


def _sources(request: SourceRequest) -> dict[str, dict[str, Any]]:
    """Everything that determines the binaries of a pair."""
    checkout = asdict(checkout_state(request.checkout))
    return {
        "submodule": checkout.pop("submodules"),
        "checkout": checkout,
        "tool": {"cmake": find_cmake_version(find_tool("cmake")), **_ndk_or_compilers(request)},
        "environment": {name: os.environ.get(name, "") for name in _FLAG_VARIABLES},
        "runner": {
            "platform": request.platform,
            "trace": request.trace,
            "sources": folder_hash(request.native_dir),
            # ExecuTorch takes headers and code generation from it.
            "torch": importlib.metadata.version("torch"),
            "machine": f"{host.system()} {host.machine()}",
        },
    }


def _ndk_or_compilers(request: SourceRequest) -> dict[str, str]:
    if request.platform == "android":
        return {"NDK": ndk_version(request.ndk)}
    commands = {"CXX": find_compiler(), "CC": shlex.split(os.environ.get("CC", ""))}
    return {name: first_line([*command, "--version"]) for name, command in commands.items() if command}


def folder_hash(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return sha256_of_text(
        *(f"{path.relative_to(folder).as_posix()} {sha256_of_file(path)}" for path in files)
    )


def _build(
    request: SourceRequest,
    sme2: str,
    sources: dict[str, dict[str, Any]],
    key: str,
    final: Path,
    log: Log,
) -> RunnerBinary:
    work = final.with_name(f".source-{final.name}")
    for other in final.parent.glob(".source-*"):
        if other != work:
            shutil.rmtree(other, ignore_errors=True)
    version = sources["checkout"]["version"]
    log(f"runner {final.name}: building ExecuTorch {version} for {request.platform}, SME2 {sme2}")

    def facts(staged: Path) -> dict[str, object]:
        if _sources(request) != sources:
            raise BuildError(
                f"{request.checkout}, or a tool, changed while it was built",
                "Leave them alone until the build is finished.",
            )
        record = {"sources": sources, "preset": request.preset(sme2), **configured(work / "cmake")}
        installed = {path.name: {"sha256": sha256_of_file(path)} for path in sorted(staged.iterdir())}
        write_synced(staged / RECORD_NAME, json.dumps(record, indent=1, sort_keys=True) + "\n")
        compiler = ", ".join(dict.fromkeys(record["compilers"].values()))
        return {
            "source_sha256": key,
            # The same for both arms.
            "pair": key,
            "executorch_version": version,
            "compiler": smoke_test(staged / BINARY_NAME) if request.runs_here else compiler,
            "compiler_id": compiler,
            "cmake_version": sources["tool"]["cmake"],
            "platform": request.platform,
            "sme2": sme2,
            "trace": request.trace,
            "kernels": sme_kernels(staged / BINARY_NAME),
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            # All of ExecuTorch is linked in; anything else that was installed is next to the binary.
            "library_dir": ".",
            "files": installed,
        }

    ndk = {"ANDROID_NDK": str(request.ndk)}
    variables = ndk if request.platform == "android" else {"CXX": shlex.join(find_compiler())}
    binary = run_steps(build_steps(request, sme2, work), variables, work, final, facts, log)
    shutil.rmtree(work, ignore_errors=True)
    return binary
