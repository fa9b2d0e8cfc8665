"""constraints.txt: the versions that set-up and tests install, and whether every Python can have them.

    python -m tools.constraints           writes the file anew, from a fresh environment with newest versions
    python -m tools.constraints --check   asks pip for every Python and architecture of Linux

The first is what `make constraints` runs, the second `make resolve`.
"""

from __future__ import annotations

import argparse
import json
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
# The oldest C library that all wheels are for, and those before it.
GLIBC = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010")
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
    wanted = [*project["dependencies"], *extras["dev"], *extras["hf"]]
    return [line for line in wanted if not line.startswith(project["name"])]


def check() -> bool:
    print(f"{'Python':8}{'architecture':14}{'packages':>9}  result")
    answers = [resolves(python, machine) for python in PYTHONS for machine in MACHINES]
    return all(answers)


def resolves(python: str, machine: str) -> bool:
    """Whether pip finds a wheel of every package, and each in the version of the file."""
    with tempfile.TemporaryDirectory(prefix="sme2-resolve-") as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"),
                *("--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", str(report)),
                # Reads what a wheel needs from its end, where the index does not tell: else gigabytes come.
                "--use-feature=fast-deps",
                *("--target", f"{folder}/target", "--constraint", str(FILE), "--python-version", python),
                *(word for glibc in GLIBC for word in ("--platform", f"{glibc}_{machine}")),
                *requirements(),
            ],
            capture_output=True,
            text=True,
        )
        found = json.loads(report.read_text())["install"] if done.returncode == 0 else []
    told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ok"]
    print(f"{python:8}{machine:14}{len(found):9}  {told[-1]}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; ask pip for every Python")
    if not parser.parse_args().check:
        write()
    elif not check():
        sys.exit(1)
