"""The CMake presets for building ExecuTorch from a checkout, and the file that puts them there.

Belongs here: which options a build gets on which platform, with SME2 on and off, and the life of
`CMakeUserPresets.json`, the one file from which CMake reads a user's own presets. No tracked file of the
checkout is touched; a user-presets file that is not ours is never overwritten; ours is removed afterwards.

The two arms are written from the same options. They differ only in the values of `SWITCHES`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sme2_assets.errors import BuildError
from sme2_assets.store import write_text_atomically

BUILD_PLATFORMS = ("android", "mac", "linux")
# Whether XNNPACK compiles in its SME and SME2 kernels. With only SME2 off it would fall back to SME's.
SWITCHES = ("XNNPACK_ENABLE_ARM_SME", "XNNPACK_ENABLE_ARM_SME2")
USER_PRESETS = "CMakeUserPresets.json"
ANDROID_ABI = "arm64-v8a"
ANDROID_PLATFORM = "android-28"
MAC_DEPLOYMENT_TARGET = "14.0"

_VENDOR = "sme2-assets"
# ExecuTorch's own CMakePresets.json has version 6.
_PRESETS_VERSION = 6

_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
    # ExecuTorch's package looks for its libraries in lib/; some distributions would install to lib64/.
    "CMAKE_INSTALL_LIBDIR": "lib",
    # Third-party projects of the checkout name CMake versions that CMake 4 no longer accepts.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    "BUILD_TESTING": "OFF",
    "EXECUTORCH_BUILD_DEVTOOLS": "ON",
    "EXECUTORCH_ENABLE_EVENT_TRACER": "ON",
    "EXECUTORCH_ENABLE_LOGGING": "ON",
    "EXECUTORCH_LOG_LEVEL": "Error",
    "EXECUTORCH_BUILD_EXTENSION_DATA_LOADER": "ON",
    "EXECUTORCH_BUILD_EXECUTOR_RUNNER": "OFF",
    "EXECUTORCH_BUILD_KERNELS_OPTIMIZED": "ON",
    "EXECUTORCH_BUILD_KERNELS_QUANTIZED": "ON",
    "EXECUTORCH_BUILD_XNNPACK": "ON",
    "EXECUTORCH_XNNPACK_ENABLE_KLEIDI": "ON",
    "FLATCC_ALLOW_WERROR": "OFF",
}
# XNNPACK sets its log level with its own definition; flags come after definitions, so this one wins.
# Without the second, Android's log would go to logcat and not to the runner's stderr.
_TRACE_FLAGS = "-UXNN_LOG_LEVEL -DXNN_LOG_LEVEL=5 -DXNN_LOG_TO_STDIO=1"


@dataclass(frozen=True)
class Preset:
    """How one arm is configured."""

    name: str
    cache: dict[str, str]
    toolchain_file: str | None = None

    def as_json(self) -> dict[str, Any]:
        toolchain = {"toolchainFile": self.toolchain_file} if self.toolchain_file else {}
        return {"name": self.name, "generator": "Ninja", **toolchain, "cacheVariables": self.cache}


def preset_for(platform: str, sme2: str, *, ndk: Path | None = None, trace: bool = False) -> Preset:
    """The preset of one arm. Without an NDK, an Android preset has a placeholder for its path."""
    return Preset(
        name=f"sme2-{platform}-{sme2}" + ("-trace" if trace else ""),
        cache={
            **_OPTIONS,
            "PYTHON_EXECUTABLE": sys.executable,
            **platform_variables(platform),
            **(_trace_variables() if trace else {}),
            **dict.fromkeys(SWITCHES, "ON" if sme2 == "on" else "OFF"),
        },
        toolchain_file=toolchain_file(ndk) if platform == "android" else None,
    )


def platform_variables(platform: str) -> dict[str, str]:
    """The variables with which both ExecuTorch and our runner are configured on a platform."""
    if platform == "android":
        # The C++ library is linked in: the runner is one file to push.
        return {
            "ANDROID_ABI": ANDROID_ABI,
            "ANDROID_PLATFORM": ANDROID_PLATFORM,
            "ANDROID_STL": "c++_static",
        }
    if platform == "mac":
        return {"CMAKE_OSX_ARCHITECTURES": "arm64", "CMAKE_OSX_DEPLOYMENT_TARGET": MAC_DEPLOYMENT_TARGET}
    return {}


def toolchain_file(ndk: Path | None) -> str:
    return str(Path(ndk or "$ANDROID_NDK") / "build" / "cmake" / "android.toolchain.cmake")


def _trace_variables() -> dict[str, str]:
    # A cache value replaces the one from the environment, so it has to include that.
    return {
        f"CMAKE_{language}_FLAGS": f"{os.environ.get(variable, '')} {_TRACE_FLAGS}".strip()
        for language, variable in (("C", "CFLAGS"), ("CXX", "CXXFLAGS"))
    }


def presets_text(presets: list[Preset]) -> str:
    """The text of the user-presets file."""
    content = {
        "version": _PRESETS_VERSION,
        "vendor": {_VENDOR: {"note": "Written for one build and removed after it."}},
        "configurePresets": [preset.as_json() for preset in presets],
    }
    return json.dumps(content, indent=2) + "\n"


def foreign_user_presets(checkout: Path) -> Path | None:
    """The checkout's user-presets file, if there is one and it is not ours."""
    path = checkout / USER_PRESETS
    if not path.exists() and not path.is_symlink():
        return None
    try:
        ours = not path.is_symlink() and _VENDOR in json.loads(path.read_text(encoding="utf-8"))["vendor"]
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    return None if ours else path


def foreign_presets_error(path: Path) -> BuildError:
    return BuildError(
        f"{path} exists and was not written by sme2_assets",
        "Move it away while the runner is built, or build from another clone "
        "(git worktree add <folder>/executorch).",
    )


@contextmanager
def user_presets(checkout: Path, presets: list[Preset]) -> Iterator[Path]:
    """Puts the presets in the checkout while the block runs. A file left by a killed build is replaced."""
    if (foreign := foreign_user_presets(checkout)) is not None:
        raise foreign_presets_error(foreign)
    path = checkout / USER_PRESETS
    try:
        write_text_atomically(path, presets_text(presets))
    except OSError as error:
        raise BuildError(
            f"{path} cannot be written ({error.strerror})", "Make the checkout's folder writable."
        ) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
