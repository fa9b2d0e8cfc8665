"""Makes the virtual environment of a checkout, or says in a sentence why it cannot: what `make setup` runs.

Belongs here: what must be true before minutes of downloads, and the order of the installation. What a missing
thing is called on this system is told in sme2_assets/distribution.py.

Run by whatever Python there is, also one that is too old, with nothing installed: nothing but the standard
library, and no syntax that is newer than Python 3.6.
"""

import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from sme2_assets import distribution

LOWEST, BEYOND = (3, 11), (3, 15)
# ExecuTorch has wheels for these, and its own sources are much to build.
MACHINES = {"Linux": ("aarch64", "x86_64"), "Darwin": ("arm64",)}
OLDEST_GLIBC = (2, 28)
OLDEST_MACOS = 14
# PyTorch's builds without CUDA; the ordinary index has them for macOS alone.
TORCH_INDEX = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
TORCH_INDEX_SECONDS = 4
# All versions with the hashes of their files; uv, which reads that; torch without CUDA, which is not on PyPI.
LOCK, UV, TORCH_CPU = Path("uv.lock"), Path("tools/uv.txt"), Path("tools/torch-cpu.txt")
# What is downloaded, and what it takes on the disk when it is unpacked, as measured.
CPU_MB, CPU_GIB = 400, 2.5
CUDA_MB, CUDA_GIB = 3000, 9.0


class Stop(Exception):
    """The set-up cannot go on: what is wrong, and what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"error: {what}\n  What to do: {remedy}")


def main() -> None:
    venv, extras = Path(sys.argv[1]), sys.argv[2:]
    try:
        require_system()
        if not is_usable(venv):
            require_python()
        require_tools(with_venv=not is_usable(venv))
        if not _has_locked_torch(venv):
            require_space(venv, CPU_GIB)
        set_up(venv, extras)
    except Stop as stop:
        sys.exit(str(stop))
    except KeyboardInterrupt:
        sys.exit(
            "error: interrupted\n  What to do: the same command again; what was downloaded is used again."
        )


# What must be true


def require_system() -> None:
    system, machine = platform.system(), platform.machine()
    host = distribution.this_host()
    if system == "Darwin" and machine == "x86_64":
        raise Stop(
            "ExecuTorch has no build for a Mac with an Intel CPU.",
            "Use a Mac with Apple silicon, or a Linux machine or container, aarch64 or x86_64.",
        )
    if machine not in MACHINES.get(system, ()) or struct.calcsize("P") != 8:
        raise Stop(
            "ExecuTorch has no build for {} {}{}.".format(
                system, machine, "" if struct.calcsize("P") == 8 else " with a 32-bit Python"
            ),
            "Use Linux on aarch64 or x86_64 (on Windows: in WSL), or macOS on Apple silicon.",
        )
    if system == "Darwin":
        version = platform.mac_ver()[0]
        if version and int(version.split(".")[0]) < OLDEST_MACOS:
            raise Stop(
                f"ExecuTorch's build needs macOS {OLDEST_MACOS} or later, and this is {version}.",
                "Update macOS, or use a Linux machine.",
            )
        return
    library, version = platform.libc_ver()
    if library != "glibc":
        raise Stop(
            f"{host.name} has no GNU C library, which the builds of PyTorch and ExecuTorch need.",
            distribution.MUSL_REMEDY,
        )
    if tuple(map(int, version.split(".")[:2])) < OLDEST_GLIBC:
        raise Stop(
            "{} has glibc {}, and the builds of PyTorch and ExecuTorch need {} or later.".format(
                host.name, version, ".".join(map(str, OLDEST_GLIBC))
            ),
            "Use a newer system, e.g. Debian 12; "
            + distribution.MUSL_REMEDY[0].lower()
            + distribution.MUSL_REMEDY[1:],
        )


def require_python() -> None:
    version = sys.version_info[:2]
    if not LOWEST <= version < BEYOND or sysconfig.get_config_var("Py_GIL_DISABLED"):
        free = " without its lock" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
        raise Stop(
            f"Python 3.11 to 3.14 is needed; {sys.executable} is {version[0]}.{version[1]}{free}.",
            distribution.python_remedy("3.11"),
        )


def require_tools(with_venv: bool) -> None:
    """All that is missing at once: one command brings it."""
    missing, names = [], []
    if with_venv and not _has_venv():
        missing.append("venv")
        names.append("Python's venv module with ensurepip")
    given = shlex.split(os.environ.get("CXX", ""))
    if given and shutil.which(given[0]) is None:
        raise Stop(
            f"The C++ compiler named by CXX was not found: {given[0]}.",
            "Set CXX to a compiler, or unset it.",
        )
    if not given and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        missing.append("compiler")
        names.append("a C++ compiler (c++, g++ or clang++)")
    if missing:
        told = "Not installed: {}.".format(" and ".join(names))
        raise Stop(told, distribution.to_install(*missing) + ".")


def _has_venv() -> bool:
    try:
        import ensurepip
        import venv  # noqa: F401

        return bool(ensurepip.version())
    except Exception:
        # Debian's stub of ensurepip may be there and fail.
        return False


def require_space(venv: Path, gib: float) -> None:
    folder = venv.resolve()
    while not folder.exists():
        folder = folder.parent
    # pip keeps each download in the temporary folder until it is installed.
    for place, wanted in ((folder, gib), (Path(tempfile.gettempdir()), gib / 3)):
        free = shutil.disk_usage(str(place)).free / 2**30
        if free < wanted:
            raise Stop(
                f"{free:.1f} GiB are free at {place}, and the set-up needs {wanted:.1f} GiB there.",
                "Free some space"
                + ("." if place == folder else ", or set TMPDIR to a folder on another disk."),
            )


def is_usable(venv: Path) -> bool:
    """Whether there is an environment with pip whose Python serves: an interrupted one may lack anything."""
    question = f"import sys, pip; sys.exit(not {LOWEST!r} <= sys.version_info[:2] < {BEYOND!r})"
    return _succeeds(venv, question)


def _succeeds(venv: Path, code: str) -> bool:
    try:
        done = subprocess.run(
            [str(_python(venv)), "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return False
    return done.returncode == 0


# What is done


def set_up(venv: Path, extras: list) -> None:
    made = not is_usable(venv)
    if made:
        _make_environment(venv)
    if not _has_locked_torch(venv):
        try:
            version = offered_torch(venv)
        except Stop:
            # An environment with nothing in it is no use to anybody.
            if made:
                shutil.rmtree(str(venv), ignore_errors=True)
            raise
        choose_torch(venv, version)
    _require(_installing(venv, UV))
    install_packages(venv, extras)
    _require([*_pip_install(venv), "--no-build-isolation", "--editable", "."])


def install_packages(venv: Path, extras: list) -> None:
    """Installs what uv.lock has for these extras. pip does it: its settings have the mirrors."""
    export = [str(venv / "bin" / "uv"), "export", "--quiet", "--frozen", "--offline", "--no-emit-project"]
    for extra in extras:
        export += ["--extra", extra]
    if torch_version(venv).endswith("+cpu"):
        # uv.lock has PyPI's torch, with CUDA.
        unused = r'^name = "(torch|triton|(?:cuda|nvidia)-\S+)"$'
        for name in re.findall(unused, LOCK.read_text(), re.MULTILINE):
            export += ["--no-emit-package", name]
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages.txt"
        _require([*export, "--output-file", str(packages)])
        _require(_installing(venv, packages))


def _installing(venv: Path, packages: Path) -> list:
    """The command that installs what a file names, and refuses what has another hash than there."""
    return [*_pip_install(venv), "--require-hashes", "--requirement", str(packages)]


def _pip_install(venv: Path) -> list:
    command = [str(_python(venv)), "-m", "pip", "install", "--disable-pip-version-check"]
    # Byte-compiling all of torch up front takes longer than compiling what is imported, when it is.
    return [*command, "--no-compile", "--no-deps"]


def _require(command: list) -> None:
    if subprocess.run(command).returncode != 0:
        raise Stop(
            "pip could not install everything; what it said is above.",
            "Mend that, then the same command again: what was downloaded is used again.",
        )


def _make_environment(venv: Path) -> None:
    if subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)]).returncode != 0:
        shutil.rmtree(str(venv), ignore_errors=True)
        raise Stop(
            f"{sys.executable} -m venv failed; what it said is above.",
            "Mend that, or name another Python: `make setup PYTHON=/path/to/python3.12`.",
        )


def torch_version(venv: Path) -> str:
    """The version of torch in an environment, with +cpu for a build without CUDA; empty if there is none."""
    try:
        return subprocess.run(
            [str(_python(venv)), "-c", "import importlib.metadata as m; print(m.version('torch'))"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ).stdout.strip()
    except OSError:
        return ""


def locked_torch() -> str:
    (version,) = re.findall(r"^torch==(\S+)\+cpu ", TORCH_CPU.read_text(), re.MULTILINE)
    return str(version)


def _has_locked_torch(venv: Path) -> bool:
    return torch_version(venv).split("+")[0] == locked_torch()


def choose_torch(venv: Path, version: str) -> None:
    """Installs a build of torch without CUDA where one can be had, and says what will be downloaded.

    `version` is what pip would take by itself.
    """
    if platform.system() != "Linux":
        _say(f"about {CPU_MB} MB will be downloaded")
        return
    if version.endswith("+cpu"):
        _say(f"about {CPU_MB} MB will be downloaded")
        _require(_installing(venv, TORCH_CPU))
        return
    if _answers(TORCH_INDEX):
        _say(f"about {CPU_MB} MB will be downloaded, torch without CUDA from {TORCH_INDEX}")
        if subprocess.run([*_installing(venv, TORCH_CPU), "--index-url", TORCH_INDEX]).returncode == 0:
            return
    _say(
        f"about {CUDA_MB / 1000:.1f} GB will be downloaded: PyPI's torch brings CUDA libraries, which are "
        f"not used here. {TORCH_INDEX} has builds without, but did not answer, or not for this machine. "
        "TORCH_INDEX can name another index, PIP_FIND_LINKS a folder with such a wheel"
    )
    require_space(venv, CUDA_GIB)


def offered_torch(venv: Path) -> str:
    """The version that pip would take with its settings. That it knows one tells that its index answers."""
    pinned = locked_torch()
    command = [str(_python(venv)), "-m", "pip", "--disable-pip-version-check", "index", "versions", "torch"]
    done = subprocess.run(
        [*command, "--retries", "1", "--timeout", "10"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    listed = "".join(re.findall(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)).split(", ")
    offered = [version for version in listed if version.split("+")[0] == pinned]
    if not offered:
        told = re.findall(r"^ERROR: (.+?)\.?$", done.stdout, re.MULTILINE) or ["none is in its index"]
        raise Stop(
            f"pip finds no torch {pinned} for this machine and Python: {told[-1]}.",
            "Check the network and pip's settings (proxy, index-url), which are shown by "
            f"`{_python(venv)} -m pip config list`; then the same command again.",
        )
    return pinned + "+cpu" if pinned + "+cpu" in offered else pinned


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address + "/torch/", timeout=TORCH_INDEX_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _say(text: str) -> None:
    print("==> " + text, flush=True)


if __name__ == "__main__":
    main()
