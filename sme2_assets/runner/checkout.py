"""The state of a user's ExecuTorch checkout: commit, local changes, submodules, version. Reads, never writes.

Belongs here: what git and the checkout's own files say. Not here: how it is built.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from sme2_assets.distribution import installing
from sme2_assets.errors import BuildError
from sme2_assets.runner.presets import USER_PRESETS
from sme2_assets.store import sha256_of_file

# Submodules that the presets need to build, if the checkout has them at all.
NEEDED_SUBMODULES = (
    *(
        f"backends/xnnpack/third-party/{name}"
        for name in ("XNNPACK", "cpuinfo", "pthreadpool", "FXdiv", "FP16")
    ),
    *(f"third-party/{name}" for name in ("flatbuffers", "flatcc")),
    "kernels/optimized/third-party/eigen",
)
XNNPACK = "backends/xnnpack/third-party/XNNPACK"


@dataclass(frozen=True)
class CheckoutState:
    """Everything that distinguishes one state of the sources from another."""

    commit: str
    version: str | None
    diff_sha256: str | None
    """The hash of what differs from the commit, including untracked files. None: nothing does."""
    submodules: dict[str, str] = field(default_factory=dict)
    """The commit of each submodule present, with the hash of its own changes if it has any."""
    missing_submodules: tuple[str, ...] = ()
    kleidiai: str | None = None
    """The KleidiAI that XNNPACK downloads when it is configured: URL and hash as written there."""

    @property
    def dirty(self) -> bool:
        return self.diff_sha256 is not None or any("+" in commit for commit in self.submodules.values())


def checkout_state(checkout: Path) -> CheckoutState:
    """Reads the state. A folder that is not a git repository, or has no commit, is a BuildError."""
    if not checkout.is_dir():
        raise BuildError(f"There is no folder {checkout}", _CLONE)
    top = Path(_git(checkout, "rev-parse", "--show-toplevel").strip())
    if top.resolve() != checkout.resolve():
        raise BuildError(
            f"{checkout} is not the top of a git repository, it is inside {top}",
            "Name the top folder of the ExecuTorch clone.",
        )
    submodules, missing = _submodules(checkout)
    version = checkout / "version.txt"
    return CheckoutState(
        commit=_git(checkout, "rev-parse", "HEAD").strip(),
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else None,
        diff_sha256=_changes(checkout, ignored=(USER_PRESETS,)),
        submodules=submodules,
        missing_submodules=missing,
        kleidiai=_kleidiai(checkout),
    )


_CLONE = "Clone it first: git clone --recurse-submodules -b v1.5.1 https://github.com/pytorch/executorch.git"


def _git(folder: Path, *words: str) -> str:
    return _git_bytes(folder, *words).decode(errors="replace")


def _git_bytes(folder: Path, *words: str) -> bytes:
    command = ["git", "-C", str(folder), *words]
    # Without optional locks git does not refresh the index: nothing in the checkout changes.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=600, env=environment).stdout
    except FileNotFoundError:
        raise BuildError("git is not installed", f"Install it: {installing('git')}") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise BuildError(
            f"{folder} is not a git checkout that can be read ({said[0] if said else '?'})", _CLONE
        ) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"git does not answer in {folder}", "Try `git status` there.") from error


def _changes(repository: Path, ignored: tuple[str, ...] = ()) -> str | None:
    """The hash of everything that differs from HEAD, not counting submodules; None where nothing does."""
    diff = _git_bytes(
        repository,
        *(
            "diff",
            "HEAD",
            "--binary",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--ignore-submodules=all",
        ),
    )
    listed = _git(repository, "ls-files", "--others", "--exclude-standard", "-z")
    untracked = [name for name in sorted(listed.split("\0")) if name and name not in ignored]
    if not diff and not untracked:
        return None
    digest = hashlib.sha256(diff)
    for name in untracked:
        path = repository / name
        content = sha256_of_file(path) if path.is_file() and not path.is_symlink() else "not a file"
        digest.update(f"\0{name}\0{content}".encode())
    return digest.hexdigest()


def _submodules(checkout: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    present, missing = {}, []
    for line in _git(checkout, "submodule", "status", "--recursive").splitlines():
        match = re.fullmatch(r"([ +U-])([0-9a-f]+) (.+?)(?: \(.*\))?", line)
        if match is None:
            continue
        mark, commit, path = match.groups()
        if mark == "-":
            if path in NEEDED_SUBMODULES:
                missing.append(path)
            continue
        changes = _changes(checkout / path)
        present[path] = f"{commit}+{changes[:16]}" if changes else commit
    return dict(sorted(present.items())), tuple(missing)


def _kleidiai(checkout: Path) -> str | None:
    recipe = checkout / XNNPACK / "cmake" / "DownloadKleidiAI.cmake"
    if not recipe.is_file():
        return None
    text = recipe.read_text(encoding="utf-8", errors="replace")
    found = [match[1] for match in re.finditer(r"^\s*(?:URL|URL_HASH|GIT_TAG)\s+(\S+)", text, re.MULTILINE)]
    return " ".join(found) or None
