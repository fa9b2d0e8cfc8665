"""The compiler for aarch64 Linux on another host: found or fetched, and tried before it is promised."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.diagnostics import doctor
from sme2_assets.distribution import cross_compiler_remedy
from sme2_assets.errors import BuildError
from sme2_assets.store import Store
from sme2_assets.targets import local
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.toolchain import cross_compiler
from sme2_assets.toolchain.cross_compiler import compiler_availability, compiler_folder, find_cross_compiler
from sme2_assets.toolchain.debian import RECORD
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests.reach import skip_out_of_reach

# As the assembler says it when a library of its own is not found.
BROKEN = "aarch64-linux-gnu-as: error while loading shared libraries: libopcodes-2.40-arm64.so"


def unpacked(tools: Path, script: str) -> Path:
    """A folder as it is fetched, with another program in the compiler's place."""
    compiler = compiler_folder(tools) / "usr" / "bin" / "aarch64-linux-gnu-g++"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    (compiler_folder(tools) / RECORD).write_text("{}")
    return compiler


@pytest.fixture
def no_installed_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_compiler, "_COMPILERS", ("aarch64-linux-gnu-g++-that-is-not-there",))
    monkeypatch.setattr(
        cross_compiler,
        "_unpacked_compiler",
        lambda folder: cross_compiler.CrossCompiler((str(folder / "usr/bin/aarch64-linux-gnu-g++"), "-O0")),
    )


@pytest.fixture(scope="session")
def fetched_tools(artifacts_dir: Path) -> Path:
    """A tools folder with the compiler of the distribution's package."""
    try:
        find_cross_compiler(artifacts_dir / "tools", log=print, fetched=True)
    except BuildError as error:
        skip_out_of_reach(error)
    return artifacts_dir / "tools"


def test_without_a_compiler_and_without_apt_one_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="apt-get") as caught:
        find_cross_compiler(tmp_path / "tools", log=print)
    assert caught.value.remedy == cross_compiler_remedy()
    answer = compiler_availability(tmp_path / "tools")
    assert (answer.ok, answer.remedy) == (False, cross_compiler_remedy())


def test_a_compiler_that_brings_no_c_library_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "aarch64-linux-gnu-g++"
    bare.write_text('#!/bin/sh\necho "${1#*=}"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="has no C or C\\+\\+ library"):
        find_cross_compiler(tmp_path / "tools", log=print)


def test_every_library_that_a_fetched_compiler_needs_and_this_host_lacks_is_found_for_it(
    tmp_path: Path,
) -> None:
    """The assembler's own libraries have their version before `.so`, the compiler's behind it."""
    folder = tmp_path / "unpacked"
    there = folder / "usr/lib" / f"{platform.machine()}-linux-gnu"
    there.mkdir(parents=True)
    lacking = {"libbfd-2.99-arm64.so", "libopcodes-2.99-arm64.so", "libisl.so.99", "libisl.so.99.1.0"}
    for name in (*lacking, "libc.so.6", "libisl.a"):
        (there / name).touch()
    compiler = cross_compiler._unpacked_compiler(folder)
    links = Path(compiler.variables["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    # Not libc: every host has its own, which alone fits its loader.
    assert {link.name for link in links.iterdir()} == lacking
    assert all(link.resolve().parent == there for link in links.iterdir())


@pytest.mark.usefixtures("no_installed_compiler")
def test_a_fetched_compiler_that_does_not_work_is_no_compiler(
    emulator: Qemu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_QEMU", str(emulator.path))
    unpacked(tmp_path, f"echo '{BROKEN}' >&2; exit 1")
    target = EmulatedTarget(tmp_path)
    target.bundled = True
    answer = target.availability("on")
    assert not answer.ok
    assert BROKEN in answer.detail
    assert answer.remedy == cross_compiler_remedy()
    target.bundled = False
    assert target.availability("on").ok, "a host with an aarch64 CPU needs none"


@pytest.mark.usefixtures("no_installed_compiler")
def test_a_path_that_gcc_cannot_take_is_named(tmp_path: Path) -> None:
    unpacked(tmp_path / "50%", f"echo '{BROKEN}' >&2; exit 1")
    answer = compiler_availability(tmp_path / "50%")
    assert not answer.ok
    assert "its path has a %" in answer.detail


@pytest.mark.usefixtures("no_installed_compiler")
@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("exit 0", "wrote no program"),
        ('printf "\\177ELF\\2\\1\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\2\\0\\76\\0" > "$3"', "not for aarch64"),
        ('echo "#!/bin/sh" > "$3"', "not for aarch64"),
    ],
)
def test_a_compiler_that_builds_something_else_is_found_out(
    script: str, complaint: str, tmp_path: Path
) -> None:
    unpacked(tmp_path, script)
    answer = compiler_availability(tmp_path)
    assert not answer.ok
    assert complaint in answer.detail


@pytest.mark.usefixtures("no_installed_compiler")
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="without apt another remedy is told")
def test_a_compiler_that_can_be_fetched_is_not_promised_before_it_was_tried(tmp_path: Path) -> None:
    answer = compiler_availability(tmp_path)
    assert not answer.ok
    assert "sme2 emulator" in str(answer.remedy)
    assert not compiler_folder(tmp_path).exists(), "a question fetched something"


@pytest.mark.usefixtures("no_installed_compiler")
def test_that_a_compiler_works_is_remembered_until_it_is_another(tmp_path: Path) -> None:
    says = tmp_path / "calls"
    header = 'printf "\\177ELF\\2\\1\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\2\\0\\267\\0" > "$3"'
    unpacked(tmp_path, f"echo called >> {says}; {header}")
    for _ in range(2):
        assert compiler_availability(tmp_path).ok
    assert says.read_text() == "called\n"
    (compiler_folder(tmp_path) / RECORD).write_text('{"packages": []}')
    assert compiler_availability(tmp_path).ok
    assert says.read_text() == "called\n" * 2


def test_the_fetched_compiler_works(fetched_tools: Path) -> None:
    (fetched_tools / "cross-compiler.works").unlink(missing_ok=True)
    compiler = find_cross_compiler(fetched_tools, log=print, fetched=True)
    assert compiler.command[0].startswith(str(fetched_tools.resolve()))
    assert compiler_availability(fetched_tools).ok
    assert (fetched_tools / "cross-compiler.works").is_file()


def test_on_another_cpu_the_emulator_comes_with_its_compiler(
    fetched_tools: Path, emulator: Qemu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools").symlink_to(fetched_tools)
    monkeypatch.setattr(local, "is_arm64", lambda: False)
    monkeypatch.setattr(doctor, "host_is_target", lambda: False)
    done = CliRunner().invoke(main, ["--data", str(tmp_path), "emulator"])
    assert done.exit_code == 0, done.output
    assert "its runner is built with: " in done.output
    findings = {step.name: step.status for step in doctor.examine(Store(tmp_path)).steps}
    assert findings["compiler for aarch64 Linux"] == "passed"
