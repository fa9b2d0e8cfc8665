"""A user's ExecuTorch checkout: its state, and what about it would stop a build. Reads, never writes.

Belongs here: what git and the checkout's own files say. Not here: how it is built.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.distribution import installing
from sme2_assets.errors import BuildError
from sme2_assets.store import sha256_of_file
from sme2_assets.toolchain.sdk import installed_sdk

_XNNPACK_AND_ITS_OWN = ("XNNPACK", "cpuinfo", "pthreadpool", "FXdiv", "FP16")
# Submodules that the runner's build needs, if the checkout has them at all.
_NEEDED_SUBMODULES = (
    *(f"backends/xnnpack/third-party/{name}" for name in _XNNPACK_AND_ITS_OWN),
    *(f"third-party/{name}" for name in ("flatbuffers", "flatcc", "gflags", "json", "pocketfft")),
    "kernels/optimized/third-party/eigen",
)
_CLONE = "Clone it first: git clone --recurse-submodules -b v1.5.1 https://github.com/pytorch/executorch.git"


@dataclass(frozen=True)
class CheckoutState:
    """Everything that distinguishes one state of the sources from another."""

    commit: str
    version: str
    changes: str | None
    """The hash of what differs from the commit, including untracked files. None: nothing does."""
    submodules: dict[str, str]
    """The commit of each submodule present, with the hash of its own changes if it has any."""
    missing_submodules: tuple[str, ...]


def checkout_state(checkout: Path) -> CheckoutState:
    """Reads the state. A folder that is not a git repository, or has no commit, is a BuildError."""
    if not checkout.is_dir():
        raise BuildError(f"There is no folder {checkout}", _CLONE)
    top = Path(_git(checkout, "rev-parse", "--show-toplevel").decode().strip())
    if top.resolve() != checkout.resolve():
        raise BuildError(
            f"{checkout} is not the top of a git repository, it is inside {top}",
            "Name the top folder of the ExecuTorch clone.",
        )
    submodules, missing = {}, []
    status = _git(checkout, "submodule", "status", "--recursive").decode()
    for mark, commit, path in re.findall(r"^(.)(\w+) (.+?)(?: \(.*\))?$", status, re.MULTILINE):
        if mark != "-":
            changes = _changes(checkout / path)
            submodules[path] = f"{commit}+{changes[:16]}" if changes else commit
        elif path in _NEEDED_SUBMODULES:
            missing.append(path)
    version = checkout / "version.txt"
    return CheckoutState(
        commit=_git(checkout, "rev-parse", "HEAD").decode().strip(),
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else "",
        changes=_changes(checkout),
        submodules=submodules,
        missing_submodules=tuple(missing),
    )


def _changes(repository: Path) -> str | None:
    """The hash of everything that differs from HEAD, not counting submodules; None where nothing does."""
    plain = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
    diff = _git(repository, "diff", "HEAD", *plain)
    untracked = _git(repository, "ls-files", "--others", "--exclude-standard", "-z").decode().split("\0")[:-1]
    if not diff and not untracked:
        return None
    digest = hashlib.sha256(diff)
    for name in sorted(untracked):
        path = repository / name
        content = sha256_of_file(path) if path.is_file() else "not a file"
        digest.update(f"\0{name}\0{content}".encode())
    return digest.hexdigest()


def _git(folder: Path, *words: str) -> bytes:
    # Without optional locks git does not refresh the index: nothing in the checkout changes.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, check=True, env=environment).stdout
    except FileNotFoundError:
        raise BuildError("git is not installed", f"Install it: {installing('git')}") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise BuildError(
            f"{folder} is not a git checkout that can be read ({said[0] if said else '?'})", _CLONE
        ) from error


def checkout_problems(checkout: Path) -> Iterator[BuildError]:
    """What about the checkout would stop a build."""
    state = checkout_state(checkout)
    for name in ("CMakeLists.txt", "version.txt"):
        if not (checkout / name).is_file():
            yield BuildError(
                f"{checkout} is not an ExecuTorch checkout: it has no {name}",
                "Name the top folder of a clone of ExecuTorch.",
            )
            return
    if checkout.resolve().name != "executorch":
        yield BuildError(
            f"The checkout's folder is named {checkout.resolve().name!r}",
            "Its CMake project accepts only the name `executorch`: rename the folder.",
        )
    git = f"git -C {shlex.quote(str(checkout))}"
    if state.missing_submodules:
        yield BuildError(
            f"Submodules of {checkout} are missing: {', '.join(state.missing_submodules)}",
            f"Run: {git} submodule update --init --recursive",
        )
    installed = installed_sdk().version
    if _release(state.version) < _release(installed):
        yield BuildError(
            f"The checkout is ExecuTorch {state.version}; models are exported with {installed}, which an "
            "older runtime may not load",
            f"Run: {git} checkout v{installed}; then update its submodules.",
        )


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
