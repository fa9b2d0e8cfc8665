"""Tools that build the runner for aarch64 Linux on any other host.

Belongs here: how ExecuTorch's aarch64 libraries (`sdk.py`) and a cross compiler
(`targets/cross_compiler.py`) make a toolchain. `bundle.py` uses it.

The libraries come from the aarch64 wheel of exactly the version that is installed here, so the runner can
read what this machine exports; unless another version is asked for.
"""

from __future__ import annotations

from pathlib import Path

from sme2_assets.runner.build import Toolchain, find_cmake_version, find_tool, first_line
from sme2_assets.toolchain.cross_compiler import find_cross_compiler
from sme2_assets.toolchain.sdk import Log, fetch_sdk, installed_sdk

TARGET = "Linux aarch64"


def cross_toolchain(
    tools: Path, *, log: Log, fetched_compiler: bool = False, executorch: str = ""
) -> Toolchain:
    """Everything a build for aarch64 Linux needs; what is missing is downloaded into `tools`.

    `fetched_compiler` uses the package's compiler even where one is installed. `executorch` is a version;
    empty: the installed one.
    """
    cmake = find_tool("cmake")
    compiler = find_cross_compiler(tools, log=log, fetched=fetched_compiler)
    sdk = fetch_sdk(executorch or installed_sdk().version, TARGET, tools, log=log)
    return Toolchain(
        sdk=sdk,
        cmake=cmake,
        cmake_version=find_cmake_version(cmake),
        ninja=find_tool("ninja"),
        compiler=compiler.command,
        compiler_id=first_line([*compiler.command, "--version"], compiler.variables),
        target=TARGET,
        options=("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
        # Flags set in this environment are meant for this machine's own compiler.
        variables={**compiler.variables, "CXXFLAGS": "", "LDFLAGS": ""},
    )
