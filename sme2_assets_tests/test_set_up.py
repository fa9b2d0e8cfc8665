"""Setting up: what is missing is told in a sentence before anything is downloaded, fit for the system."""

from __future__ import annotations

import ast
import functools
import hashlib
import http.server
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest

from sme2_assets import distribution
from sme2_assets.store import CHECKOUT
from tools import set_up

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
    for name in (
        *("Makefile", "pyproject.toml", "uv.lock", "tools/set_up.py", "tools/torch-cpu.txt", "tools/uv.txt"),
        *("sme2_assets/__init__.py", "sme2_assets/distribution.py"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
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


def wheel(folder: Path, name: str, version: str, content: str = "") -> str:
    """Puts a package with one module into a folder; the hash of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            # The same bytes whenever it is written.
            archive.writestr(zipfile.ZipInfo(file), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


(TORCH,) = re.findall(r"^torch==(\S+)\+cpu ", (CHECKOUT / set_up.TORCH_CPU).read_text(), re.MULTILINE)
LOCK = """\
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "sound"
version = "1.0"
source = {{ registry = "https://pypi.org/simple" }}
wheels = [
    {{ url = "https://files.pythonhosted.org/sound-1.0-py3-none-any.whl", hash = "sha256:{sound}" }},
]

[[package]]
name = "project"
version = "0"
source = {{ virtual = "." }}
dependencies = [{{ name = "sound" }}]
"""


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the hashes of two packages; the folder that has all that pip finds."""
    links, project = tmp_path / "links", tmp_path / "project"
    (project / "tools").mkdir(parents=True)
    (project / set_up.LOCK).write_text(LOCK.format(sound=wheel(links, "sound", "1.0")))
    torch = wheel(tmp_path / "index" / "torch", "torch", TORCH + "+cpu")
    (project / set_up.TORCH_CPU).write_text(f"torch=={TORCH}+cpu \\\n    --hash=sha256:{torch}\n")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "project"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["sound"]\n'
    )
    # What PyPI has.
    wheel(links, "torch", TORCH)
    monkeypatch.chdir(project)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def test_a_build_without_cuda_that_pip_knows_is_found(locked: Path):
    here = Path(sys.prefix)
    assert set_up.offered_torch(here) == TORCH
    wheel(locked, "torch", TORCH + "+cpu")
    assert set_up.offered_torch(here) == TORCH + "+cpu"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def index(locked: Path) -> Iterator[str]:
    """An index of builds without CUDA, as PyTorch has one."""
    handler = functools.partial(Quiet, directory=locked.parent / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An empty one, whose pip and uv are this one's: quicker than with its own."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    (folder / "bin" / "uv").symlink_to(Path(sys.executable).parent / "uv")
    return folder


def done_in(environment: Path, step: str) -> subprocess.CompletedProcess[str]:
    """A step of the set-up, to which the environment is `venv`."""
    return subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys; from pathlib import Path; from tools import set_up; venv = Path(sys.argv[1]);"
            # How much room there is here is not the question: /tmp may be in memory.
            "set_up.require_space = lambda *_: None;" + step,
            str(environment),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )


def installed(environment: Path) -> str:
    command = [str(environment / "bin" / "python"), "-m", "pip", "freeze"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


INSTALL_PACKAGES = "set_up.install_packages(venv, [])"
CHOOSE_TORCH = "set_up.choose_torch(venv, set_up.offered_torch(venv))"


def test_a_package_is_installed_with_the_hash_of_the_lock_and_refused_with_another(
    locked: Path, environment: Path
):
    wheel(locked, "sound", "1.0", "print('something else')")
    done = done_in(environment, INSTALL_PACKAGES)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "set_up.Stop: error: pip could not install everything" in done.stderr
    assert installed(environment) == ""
    wheel(locked, "sound", "1.0")
    done = done_in(environment, INSTALL_PACKAGES)
    assert done.returncode == 0, done.stderr
    assert installed(environment) == "sound==1.0"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch is in the lock")
def test_a_torch_from_a_folder_is_refused_with_another_hash(locked: Path, environment: Path):
    wheel(locked, "torch", TORCH + "+cpu", "print('something else')")
    done = done_in(environment, CHOOSE_TORCH)
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "set_up.Stop: error: pip could not install everything" in done.stderr
    assert installed(environment) == ""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyPI's own builds are without CUDA")
def test_torch_without_cuda_comes_from_the_index_that_has_it(
    index: str, environment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("TORCH_INDEX", index)
    done = done_in(environment, CHOOSE_TORCH)
    assert f"about {set_up.CPU_MB} MB will be downloaded" in done.stdout, done.stderr
    assert installed(environment) == f"torch=={TORCH}+cpu"


@pytest.mark.thorough
@pytest.mark.usefixtures("locked")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyPI's own builds are without CUDA")
def test_gigabytes_are_announced_where_that_index_cannot_be_reached(
    environment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9/whl/cpu")
    done = done_in(environment, CHOOSE_TORCH)
    assert f"about {set_up.CUDA_MB / 1000:.1f} GB will be downloaded" in done.stdout, done.stderr
    assert installed(environment) == "", "it is pip that takes it, with everything else"


def test_the_lock_is_of_no_machine_and_is_up_to_date():
    text = (CHECKOUT / set_up.LOCK).read_text()
    assert set(re.findall(r"https?://([^/]+)/", text)) == {"pypi.org", "files.pythonhosted.org"}
    packages = tomllib.loads(text)["package"]
    files = [file for package in packages for file in package.get("wheels", ())]
    assert files
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", file["hash"]) for file in files)
    # The same as of PyTorch's own index.
    assert {package["version"] for package in packages if package["name"] == "torch"} == {TORCH}
    # It builds this package.
    assert "setuptools" in {package["name"] for package in packages}
    uv = Path(sys.executable).parent / "uv"
    done = subprocess.run([uv, "lock", "--check", "--offline"], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
