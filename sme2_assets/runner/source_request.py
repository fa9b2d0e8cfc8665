"""A request for a build from source, and everything that would stop it, found before any work.

Belongs here: the request, and the checks of host, tools, NDK and checkout, each with its remedy.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform as host
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.errors import BuildError, Sme2Error
from sme2_assets.runner.build import NATIVE_DIR, find_cmake_version, find_compiler, find_tool
from sme2_assets.runner.checkout import checkout_state
from sme2_assets.runner.presets import (
    BUILD_PLATFORMS,
    Preset,
    foreign_presets_error,
    foreign_user_presets,
    preset_for,
)

# Public builds of ExecuTorch with SME2 use this one or newer.
MINIMUM_NDK = 26
# A runner for measuring, and one that only prints which kernels XNNPACK registers.
RUNNER_KIND = "source_runner"
TRACE_KIND = "trace_runner"

_HOSTS = {"linux": ("Linux",), "mac": ("Darwin",), "android": ("Linux", "Darwin")}


@dataclass(frozen=True)
class SourceRequest:
    """What to build: one platform, from one checkout."""

    checkout: Path
    platform: str
    ndk: Path | None = None
    trace: bool = False
    native_dir: Path = NATIVE_DIR
    """The sources of the runner."""

    @classmethod
    def of(
        cls, checkout: Path | str, platform: str, *, ndk: Path | str | None = None, trace: bool = False
    ) -> SourceRequest:
        """With paths made absolute, and the NDK looked for where Android's tools expect one."""
        if platform not in BUILD_PLATFORMS:
            raise BuildError(
                f"{platform} is not a platform to build for",
                "Build for one of "
                + ", ".join(BUILD_PLATFORMS)
                + ". The emulated platform runs the wheel's runner.",
            )
        if not str(checkout):
            raise BuildError("No checkout is named", "Name the folder of an ExecuTorch clone as `checkout`.")
        named = ndk or next(
            (
                os.environ[name]
                for name in ("ANDROID_NDK", "ANDROID_NDK_HOME", "ANDROID_NDK_ROOT")
                if name in os.environ
            ),
            None,
        )
        found = Path(named).expanduser().absolute() if named and platform == "android" else None
        return cls(Path(checkout).expanduser().absolute(), platform, found, trace, NATIVE_DIR)

    def preset(self, sme2: str) -> Preset:
        return preset_for(self.platform, sme2, ndk=self.ndk, trace=self.trace)

    @property
    def kind(self) -> str:
        return TRACE_KIND if self.trace else RUNNER_KIND

    @property
    def runs_here(self) -> bool:
        return (self.platform, host.system()) in (("linux", "Linux"), ("mac", "Darwin"))


@dataclass(frozen=True)
class BuildProblem:
    """Something that would stop a build, and what to do about it."""

    what: str
    remedy: str


def problems(request: SourceRequest) -> list[BuildProblem]:
    """Everything that would stop a build, found before any work."""
    found = []
    for look in (_host_problem, _tool_problem, _ndk_problem, _presets_problem, _checkout_problems):
        try:
            found += look(request)
        except Sme2Error as error:
            found.append(BuildProblem(error.what, error.remedy or ""))
    return found


def _host_problem(request: SourceRequest) -> list[BuildProblem]:
    if host.system() in _HOSTS[request.platform]:
        return []
    where = " or ".join(name.replace("Darwin", "macOS") for name in _HOSTS[request.platform])
    return [
        BuildProblem(
            f"A runner for {request.platform} cannot be built on {host.system()}", f"Build it on {where}."
        )
    ]


def _tool_problem(request: SourceRequest) -> list[BuildProblem]:
    find_cmake_version(find_tool("cmake"))
    find_tool("ninja")
    if request.platform != "android":
        find_compiler()
    return []


def _ndk_problem(request: SourceRequest) -> list[BuildProblem]:
    if request.platform == "android":
        ndk_version(request.ndk)
    return []


def _presets_problem(request: SourceRequest) -> list[BuildProblem]:
    if (foreign := foreign_user_presets(request.checkout)) is None:
        return []
    error = foreign_presets_error(foreign)
    return [BuildProblem(error.what, error.remedy or "")]


def _checkout_problems(request: SourceRequest) -> list[BuildProblem]:
    state = checkout_state(request.checkout)
    found = []
    if not (request.checkout / "CMakeLists.txt").is_file() or state.version is None:
        missing = "version.txt" if (request.checkout / "CMakeLists.txt").is_file() else "CMakeLists.txt"
        return [
            BuildProblem(
                f"{request.checkout} is not an ExecuTorch checkout: it has no {missing}",
                "Name the top folder of a clone of ExecuTorch.",
            )
        ]
    if request.checkout.resolve().name != "executorch":
        found.append(
            BuildProblem(
                f"The checkout's folder is named {request.checkout.resolve().name!r}",
                "Its CMake project accepts only the name `executorch`: rename the folder.",
            )
        )
    if state.missing_submodules:
        found.append(
            BuildProblem(
                f"Submodules of {request.checkout} are missing: {', '.join(state.missing_submodules)}",
                f"Run: git -C {shlex.quote(str(request.checkout))} submodule update --init --recursive",
            )
        )
    installed = _installed_version()
    if _release(state.version) < _release(installed):
        found.append(
            BuildProblem(
                f"The checkout is ExecuTorch {state.version}; models are exported with {installed}, which an "
                "older runtime may not load",
                f"Run: git -C {shlex.quote(str(request.checkout))} checkout v{installed}; then update its "
                "submodules.",
            )
        )
    return found


def _installed_version() -> str:
    try:
        return importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            "ExecuTorch is not installed", f"{sys.executable} -m pip install 'executorch>=1.5.1'"
        ) from None


def _release(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise BuildError(f"{version!r} is not a version", "Check the checkout's version.txt.")
    return int(match[1]), int(match[2])


def ndk_version(ndk: Path | None) -> str:
    """The version that the NDK states. A missing, broken or old one is a BuildError."""
    get = "Get one with Android Studio's SDK manager or `sdkmanager 'ndk;28.2.13676358'`"
    if ndk is None:
        raise BuildError("No Android NDK is named", f"{get}, and name it: --ndk DIR, or $ANDROID_NDK.")
    properties = ndk / "source.properties"
    toolchain = ndk / "build" / "cmake" / "android.toolchain.cmake"
    if not properties.is_file() or not toolchain.is_file():
        missing = properties if not properties.is_file() else toolchain
        raise BuildError(f"{ndk} is not an Android NDK: there is no {missing}", f"{get}.")
    match = re.search(r"^Pkg\.Revision\s*=\s*(\S+)", properties.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise BuildError(f"{properties} names no Pkg.Revision", f"{get}.")
    if int(match[1].split(".")[0]) < MINIMUM_NDK:
        raise BuildError(
            f"{ndk} is NDK {match[1]}; r{MINIMUM_NDK} is the oldest that is known to build SME2 kernels",
            f"{get}.",
        )
    return match[1]
