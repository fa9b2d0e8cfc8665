"""A small but real ExecuTorch checkout: a git repository with a submodule that CMake builds with a compiler.

Its sources lie in `mini_executorch/`. Only the version is written here, because it must be the wheel's.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).with_name("mini_executorch")
XNNPACK = "backends/xnnpack/third-party/XNNPACK"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, "-c", "protocol.file.allow=always", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def make_checkout(parent: Path) -> Path:
    """A clean checkout in `parent`, with its submodule there."""
    origin = parent / "xnnpack_origin"
    shutil.copytree(SOURCES / "XNNPACK", origin)
    git(parent, "init", "-q", str(origin))
    commit_all(origin, "XNNPACK")
    checkout = parent / "executorch"
    shutil.copytree(SOURCES, checkout, ignore=shutil.ignore_patterns("XNNPACK"))
    (checkout / "version.txt").write_text(importlib.metadata.version("executorch") + "\n")
    git(parent, "init", "-q", str(checkout))
    git(checkout, "submodule", "--quiet", "add", str(origin), XNNPACK)
    commit_all(checkout, "ExecuTorch")
    return checkout
