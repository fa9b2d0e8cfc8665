"""Which system this machine runs, and which command installs a thing on it.

Belongs here: os-release, the names of packages, how a command for them is written. Does not: whether a thing
is missing.

It is loaded before anything is installed, even by a Python that is too old, to say so. So it uses only the
standard library, and no syntax newer than Python 3.6. `make demo` begins with it (tools/set_up.py).
"""

import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple

OS_RELEASE = (Path("/etc/os-release"), Path("/usr/lib/os-release"))

# Family of distributions: how packages are installed there.
_INSTALL = {
    "debian": "apt install",
    "fedora": "dnf install",
    "arch": "pacman -S",
    "alpine": "apk add",
    "suse": "zypper install",
    "macos": "brew install",
}

# What a thing is called in words, and its package in each family. A missing family has no suitable package.
_PYTHON = "python{}.{}".format(*sys.version_info[:2])
_THINGS = {
    "compiler": (
        "a C++ compiler (g++ or clang++)",
        {"debian": "g++", "fedora": "gcc-c++", "arch": "gcc", "alpine": "g++", "suse": "gcc-c++"},
    ),
    "cross compiler": (
        "a C++ compiler for aarch64 Linux that brings its C library",
        {
            "debian": "g++-aarch64-linux-gnu",
            "arch": "aarch64-linux-gnu-gcc",
            "macos": "messense/macos-cross-toolchains/aarch64-unknown-linux-gnu",
        },
    ),
    "emulator": (
        "QEMU's user mode",
        {
            "debian": "qemu-user",
            "fedora": "qemu-user",
            "arch": "qemu-user",
            "alpine": "qemu-aarch64",
            "suse": "qemu-linux-user",
        },
    ),
    "adb": (
        "adb, of Google's platform-tools",
        {
            "debian": "adb",
            "fedora": "android-tools",
            "arch": "android-tools",
            "alpine": "android-tools",
            "suse": "android-tools",
            "macos": "android-platform-tools",
        },
    ),
    "ssh": (
        "OpenSSH's client",
        {
            "debian": "openssh-client",
            "fedora": "openssh-clients",
            "arch": "openssh",
            "alpine": "openssh-client",
            "suse": "openssh-clients",
        },
    ),
    # Debian splits part of the standard library off Python.
    "venv": ("Python's venv module with ensurepip", {"debian": _PYTHON + "-venv", "alpine": "python3"}),
    "git": (
        "git",
        {
            "debian": "git",
            "fedora": "git",
            "arch": "git",
            "alpine": "git",
            "suse": "git",
        },
    ),
}
# Apple ships these with its own tools.
_COMMAND_LINE_TOOLS = ("compiler", "git")


class Host(NamedTuple):
    """The system of this machine: `family` decides the names of packages and may be empty."""

    family: str
    name: str
    wsl: bool


def this_host() -> Host:
    if platform.system() == "Darwin":
        return Host("macos", "macOS " + platform.mac_ver()[0], False)
    fields = _os_release()
    words = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    family = ""
    for word in words:
        word = {"rhel": "fedora", "centos": "fedora", "opensuse": "suse", "ubuntu": "debian"}.get(word, word)
        if not family and word in _INSTALL:
            family = word
    wsl = "microsoft" in platform.release().lower()
    return Host(family, fields.get("PRETTY_NAME") or platform.system(), wsl)


def installing(*things: str) -> str:
    """How to install things here, as part of a sentence: one command for all, words for those without one.

    E.g. "`sudo apt install g++ python3.11-venv`".
    """
    host = this_host()
    packages, commands, words = [], [], []
    for thing in things:
        name, known = _THINGS[thing]
        if host.family == "macos" and thing in _COMMAND_LINE_TOOLS:
            commands.append("`xcode-select --install`")
        elif host.family in known:
            packages.append(known[host.family])
        else:
            words.append("install " + name)
    if packages:
        commands.insert(0, "`{}{} {}`".format(_sudo(host), _INSTALL[host.family], " ".join(packages)))
    return ", and ".join(list(dict.fromkeys(commands)) + words)


def to_install(*things: str) -> str:
    """The same, as the beginning of a sentence."""
    how = installing(*things)
    return f"Run {how}" if how.startswith("`") else how[0].upper() + how[1:]


def cross_compiler_remedy() -> str:
    host = this_host()
    if host.family == "fedora":
        return (
            f"No package of {host.name} will do: gcc-c++-aarch64-linux-gnu brings no C library. Unpack Arm's "
            "GNU toolchain for aarch64-none-linux-gnu and put its bin folder on PATH, or work in a Debian "
            "container."
        )
    if host.family == "alpine":
        return MUSL_REMEDY
    return f"{to_install('cross compiler')}: the runner for an aarch64 CPU is built with it."


def emulator_remedy(minimum: str, variable: str) -> str:
    newest = {
        "debian": ", of Debian's trixie-backports or later, of Ubuntu 25.10 or later",
        "macos": ", on a Linux machine: QEMU's user mode is only for Linux",
    }.get(this_host().family, ", where that is new enough")
    return (
        f"install QEMU >= {minimum} ({installing('emulator')}{newest}) and put qemu-aarch64 on PATH, or set "
        f"{variable} to its path"
    )


def adb_remedy(variable: str) -> str:
    text = f"{to_install('adb')}, or set {variable} to the path of one."
    if this_host().wsl:
        text += " In WSL a device on USB appears after `usbipd attach` on the Windows side."
    return text


def python_remedy(lowest: str) -> str:
    """How to get a Python that is new enough and not too new."""
    host = this_host()
    fields = _os_release()
    command = ""
    if fields.get("ID") == "ubuntu" and fields.get("VERSION_ID") == "22.04":
        command = (
            f"`{_sudo(host)}apt install python3.11 python3.11-venv`, then `make setup PYTHON=python3.11`; or "
        )
    elif host.family == "fedora":
        command = f"`{_sudo(host)}dnf install python3.12`, then `make setup PYTHON=python3.12`; or "
    elif host.family == "macos":
        command = "`brew install python@3.12`, then `make setup PYTHON=python3.12`; or "
    return (
        command + "get one that needs no root, e.g. `uv python install 3.12`, and name it: "
        f"`make setup PYTHON=/path/to/python3.12` ({lowest} is the oldest that works)."
    )


MUSL_REMEDY = (
    "Work in a Debian container, e.g. with the Dockerfile of this project: `docker build -t sme2 .`."
)


def _sudo(host: Host) -> str:
    # A container runs as root and has no sudo.
    return "" if host.family == "macos" or os.geteuid() == 0 else "sudo "


def _os_release() -> dict:
    for file in OS_RELEASE:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
        return {key.strip(): value.strip().strip("\"'") for key, value in pairs}
    return {}
