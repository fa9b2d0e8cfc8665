"""Setting up: what is missing is told in a sentence before anything is downloaded, fit for the system."""

from __future__ import annotations

import ast
import functools
import http.server
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest

from sme2_assets import distribution
from sme2_assets.store import CHECKOUT
from tools import constraints, set_up

SYSTEMS = {
    "debian": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n',
    "ubuntu": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n',
    "mint": 'ID=linuxmint\nID_LIKE="ubuntu debian"\n',
    "fedora": 'PRETTY_NAME="Fedora Linux 43"\nID=fedora\nVERSION_ID=43\n',
    "alma": 'ID="almalinux"\nID_LIKE="rhel centos fedora"\nPRETTY_NAME="AlmaLinux 9.4"\n',
    "arch": 'ID=arch\nPRETTY_NAME="Arch Linux"\n',
    "alpine": 'ID=alpine\nPRETTY_NAME="Alpine Linux v3.22"\n',
    "opensuse": 'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n',
    "unknown": "ID=templeos\n",
}
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux machine with another os-release, and a user who is not root."""
    file = tmp_path / "os-release"
    file.write_text(SYSTEMS[request.param])
    monkeypatch.setattr(distribution, "OS_RELEASE", (tmp_path / "missing", file))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def on(**expected: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("system", "expected"), list(expected.items()), indirect=["system"])


@on(
    debian=f"`sudo apt install g++ {PYTHON}-venv`",
    ubuntu=f"`sudo apt install g++ {PYTHON}-venv`",
    mint=f"`sudo apt install g++ {PYTHON}-venv`",
    fedora="`sudo dnf install gcc-c++`, and install Python's venv module with ensurepip",
    alma="`sudo dnf install gcc-c++`, and install Python's venv module with ensurepip",
    alpine="`sudo apk add g++ python3`",
    unknown="install a C++ compiler (g++ or clang++), and install Python's venv module with ensurepip",
)
@pytest.mark.usefixtures("system")
def test_one_command_of_the_system_brings_all_that_is_missing(expected: str):
    assert distribution.installing("compiler", "venv") == expected


@on(
    debian="`sudo apt install g++-aarch64-linux-gnu`",
    arch="`sudo pacman -S aarch64-linux-gnu-gcc`",
    fedora="gcc-c++-aarch64-linux-gnu brings no C library",
    alpine="Debian container",
    unknown="Install a C++ compiler for aarch64 Linux",
)
@pytest.mark.usefixtures("system")
def test_the_cross_compiler_is_one_that_brings_its_c_library(expected: str):
    assert expected in distribution.cross_compiler_remedy()


@on(
    debian="Run `sudo apt install adb`, or ",
    fedora="Run `sudo dnf install android-tools`, or ",
    opensuse="Run `sudo zypper install android-tools`, or ",
    unknown="Install adb, of Google's platform-tools, or ",
)
@pytest.mark.usefixtures("system")
def test_adb_has_another_name_elsewhere(expected: str):
    assert distribution.adb_remedy("SME2_ADB").startswith(expected)


@on(ubuntu="python3.11-venv", fedora="dnf install python3.12", debian="uv python install 3.12")
@pytest.mark.usefixtures("system")
def test_a_newer_python_is_where_the_system_has_it(expected: str):
    assert expected in distribution.python_remedy("3.11")


def test_a_mac_has_its_own_ways(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert distribution.installing("compiler", "git") == "`xcode-select --install`"
    assert distribution.installing("adb") == "`brew install android-platform-tools`"
    assert "Linux machine" in distribution.emulator_remedy("10.1", "SME2_QEMU")


@on(debian=None)
@pytest.mark.usefixtures("system")
def test_root_needs_no_sudo_and_wsl_has_no_usb(expected: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    assert distribution.installing("git") == "`apt install git`"
    assert "usbipd" in distribution.adb_remedy("SME2_ADB")


@pytest.mark.parametrize(
    "name", ["tools/set_up.py", "sme2_assets/__init__.py", "sme2_assets/distribution.py"]
)
def test_a_python_that_is_too_old_can_read_what_says_so(name: str):
    ast.parse((CHECKOUT / name).read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("version", [(3, 6), (3, 10), (3, 15)])
def test_another_python_is_refused(version: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    with pytest.raises(set_up.Stop, match=rf"3\.{version[1]}\."):
        set_up.require_python()


@pytest.mark.parametrize(
    ("system", "machine", "libc", "complaint"),
    [
        ("Linux", "riscv64", ("glibc", "2.36"), "no build for Linux riscv64"),
        ("Linux", "armv7l", ("glibc", "2.36"), "no build for Linux armv7l"),
        ("Darwin", "x86_64", ("", ""), "no build for a Mac with an Intel CPU"),
        ("Windows", "AMD64", ("", ""), "no build for Windows AMD64(?s:.*)in WSL"),
        ("Linux", "x86_64", ("", ""), "has no GNU C library(?s:.*)Debian container"),
        ("Linux", "x86_64", ("glibc", "2.17"), "has glibc 2.17, and .* need 2.28 or later"),
    ],
)
def test_a_machine_without_builds_is_refused(
    system: str, machine: str, libc: tuple[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    with pytest.raises(set_up.Stop, match=complaint):
        set_up.require_system()


def test_a_full_disk_is_told_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**12, 10**12 - 10**9, 10**9))
    with pytest.raises(set_up.Stop, match=rf"0\.9 GiB .*{tmp_path}.* 2\.5 GiB"):
        set_up.require_space(tmp_path / "not" / "there", 2.5)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as a set-up reads before it installs."""
    folder = tmp_path / "checkout"
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        folder.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, folder)
    for name in ("tools/set_up.py", "sme2_assets/__init__.py", "sme2_assets/distribution.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


def make(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("make")
    assert program
    names = ("CXX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [program, "demo", f"PYTHON={sys.executable}"],
        cwd=checkout,
        env=environment | variables,
        capture_output=True,
        text=True,
    )


def assert_nothing_was_made(checkout: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode != 0
    assert len(re.findall(r"^error: ", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "What to do: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_machine_without_a_compiler_is_left_as_it_was(checkout: Path, tmp_path: Path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    done = make(checkout, PATH=str(programs))
    assert_nothing_was_made(checkout, done)
    assert "Not installed: a C++ compiler" in done.stderr


def test_a_mirror_that_does_not_answer_leaves_nothing(checkout: Path):
    # Nobody listens on the port for discarded things.
    done = make(checkout, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_CONFIG_FILE=os.devnull)
    assert_nothing_was_made(checkout, done)
    assert "pip finds no torch" in done.stderr


def test_an_environment_that_was_left_half_made_is_not_used(tmp_path: Path):
    assert not set_up.is_usable(tmp_path / "nothing")
    venv.create(tmp_path / "half", with_pip=False)
    assert not set_up.is_usable(tmp_path / "half")
    assert set_up.is_usable(Path(sys.prefix))


def torch_wheel(folder: Path, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        info = f"torch-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def pip_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds what lies in a folder and nothing else; PyPI's build of torch is there."""
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    folder = tmp_path / "links"
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    torch_wheel(folder, pinned_torch())
    return folder


def pinned_torch() -> str:
    (version,) = re.findall(r"^torch==(\S+)$", constraints.FILE.read_text(), re.MULTILINE)
    return version


def test_a_build_without_cuda_that_pip_knows_is_found(pip_settings: Path):
    here = Path(sys.prefix)
    assert set_up.offered_torch(here) == pinned_torch()
    torch_wheel(pip_settings, pinned_torch() + "+cpu")
    assert set_up.offered_torch(here) == pinned_torch() + "+cpu"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """An index of builds without CUDA, as PyTorch has one."""
    torch_wheel(tmp_path / "index" / "torch", pinned_torch() + "+cpu")
    handler = functools.partial(Quiet, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def taken_torch(folder: Path) -> tuple[str, str]:
    """What a set-up says about torch, and the version that it then has installed."""
    # An environment whose pip is this one's: quicker than with one of its own.
    venv.create(folder, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    python = str(folder / "bin" / "python")
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys; from pathlib import Path; from tools import set_up; venv = Path(sys.argv[1]);"
            # How much room there is here is not the question: /tmp may be in memory.
            "set_up.require_space = lambda *_: None;"
            "set_up.choose_torch(venv, sys.argv[2:], set_up.offered_torch(venv))",
            *(str(folder), python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True).stdout
    return done.stdout, listed.strip()


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyPI's own builds are without CUDA")
def test_torch_without_cuda_comes_from_the_index_that_has_it(
    pip_settings: Path, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("TORCH_INDEX", index)
    said, listed = taken_torch(tmp_path / "venv")
    assert f"about {set_up.CPU_MB} MB will be downloaded" in said
    assert listed == f"torch=={pinned_torch()}+cpu"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyPI's own builds are without CUDA")
def test_gigabytes_are_announced_where_that_index_cannot_be_reached(
    pip_settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9/whl/cpu")
    said, listed = taken_torch(tmp_path / "venv")
    assert f"about {set_up.CUDA_MB / 1000:.1f} GB will be downloaded" in said
    assert listed == "", "it is pip that takes it, with everything else"


def test_constraints_are_of_no_machine_and_name_every_requirement():
    assert constraints.constraints_of("b==1\ntorch==2.13.0+cpu\npip==23\nA==2\n") == [
        "A==2",
        "b==1",
        "torch==2.13.0",
    ]
    pinned = {name(line) for line in constraints.FILE.read_text().splitlines() if not line.startswith("#")}
    assert {name(line) for line in constraints.requirements()} <= pinned
    assert not any("+" in line for line in constraints.FILE.read_text().splitlines())


def name(requirement: str) -> str:
    return re.split(r"[<>=~!\[; ]", requirement)[0].lower().replace("_", "-")
