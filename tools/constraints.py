"""constraints.txt: the versions that set-up and tests install, and whether every Python can have them.

    python -m tools.constraints           rewrites the file from a fresh environment with the newest versions
    python -m tools.constraints --check   resolves them for every Python and architecture of Linux

The first is what `make constraints` runs, the second `make resolve`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FILE = CHECKOUT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("aarch64", "x86_64")
HEADER = """\
# The versions that `make setup` installs and the tests passed with, also of what only other packages need.
# They resolve on Python 3.11 to 3.14, aarch64 and x86_64 (`make resolve`). Written by `make constraints`.
"""


def write() -> None:
    with tempfile.TemporaryDirectory(prefix="sme2-constraints-") as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "install", "--quiet", "--no-compile", *requirements()], cwd=CHECKOUT, check=True
        )
        frozen = subprocess.run([*pip, "freeze", "--all"], capture_output=True, text=True, check=True).stdout
    FILE.write_text(HEADER + "".join(f"{line}\n" for line in constraints_of(frozen)))


def constraints_of(frozen: str) -> list[str]:
    """One line for each package, for every machine: a build such as +cpu is one machine's choice."""
    lines = [re.sub(r"\+\S+", "", line) for line in frozen.splitlines()]
    return sorted((line for line in lines if not line.startswith("pip==")), key=str.lower)


def requirements() -> list[str]:
    """What the package and its tests need, without the package itself."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["hf"], *extras["deploy"]]
    return [line for line in wanted if not line.startswith(project["name"])]


def check() -> bool:
    """A table of whether every Python on every machine can have a wheel of all that is needed."""
    print(f"{'Python':8}{'Linux':9}{'packages':>9}  result")
    answers = [resolved(python, machine) for python in PYTHONS for machine in MACHINES]
    return all(answers)


def resolved(python: str, machine: str) -> bool:
    # Not pip: it cannot resolve for another machine without downloading gigabytes.
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"),
        *("--only-binary", ":all:", "--constraint", str(FILE), "--extra", "dev", "pyproject.toml"),
        *("--python-version", python, "--python-platform", f"{machine}-manylinux_2_28"),
    ]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    told = "ok" if done.returncode == 0 else " ".join(done.stderr.split())
    print(f"{python:8}{machine:9}{len(done.stdout.splitlines()):9}  {told}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; resolve them for every Python")
    if not parser.parse_args().check:
        write()
    elif not check():
        sys.exit(1)
