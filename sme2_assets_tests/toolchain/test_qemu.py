"""Finding and provisioning the emulator, with the real apt and the real QEMU.

Where a program must fail, a small one of that name stands before the real one on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sme2_assets.errors import TargetUnavailable
from sme2_assets.toolchain import debian, qemu
from sme2_assets.toolchain.qemu import Qemu, ensure_qemu, find_qemu, offers_sme2, provision_qemu, search_qemu
from sme2_assets_tests.reach import mirror_answers, skip_where_ci_would_fail

PROVISION = """
import sys
from pathlib import Path
from sme2_assets.toolchain.qemu import provision_qemu
print(provision_qemu(Path(sys.argv[1]), log=lambda line: print(line, flush=True)).path)
"""

MakeProgram = Callable[[str, str], Path]


def _silent(line: str) -> None:
    """A log nobody reads."""


def _start_provisioner(tools: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROVISION, str(tools)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="session")
def supported_host() -> None:
    try:
        qemu._require_supported_host()
    except TargetUnavailable as error:
        skip_where_ci_would_fail(str(error))


@pytest.fixture(scope="session")
def provisioned(supported_host: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A tools folder that two provisioners, started together, filled; and what each of them said."""
    tools = tmp_path_factory.mktemp("tools")
    provisioners = [_start_provisioner(tools) for _ in range(2)]
    said = [provisioner.communicate(timeout=1200)[0] for provisioner in provisioners]
    if any(provisioner.returncode != 0 for provisioner in provisioners):
        if mirror_answers():
            pytest.fail(f"the mirror answers, and no emulator was provisioned: {said}")
        skip_where_ci_would_fail(f"no package mirror answers: {said}")
    return tools, said


@pytest.fixture
def one_suite(provisioned: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that is known to serve, asked for its first suite alone: the others' indexes are large."""
    monkeypatch.setattr(qemu, "_SUITES", qemu._SUITES[:1])


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes the leftovers of a killed process. Readable by all, because apt downloads as another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def make_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProgram:
    """Puts a shell program of a given name first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, script: str) -> Path:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one folder of ours and nothing of the machine; no emulator named by hand."""
    folder = tmp_path / "bare"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(qemu.ENVIRONMENT_VARIABLE, raising=False)
    return folder


def _emulator(folder: Path, version: str, name: str = "qemu-aarch64") -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'qemu-aarch64 version {version} (Debian)'\n")
    program.chmod(0o755)
    return program


def test_a_provisioned_emulator_has_sme2(provisioned: tuple[Path, list[str]]) -> None:
    tools, _ = provisioned
    found = provision_qemu(tools, log=_silent)
    assert found.source == "provisioned"
    assert found.version >= (10, 1, 0)
    assert found.path == tools / "qemu" / found.version_text / "qemu-aarch64"
    assert offers_sme2(found)


def test_of_two_provisioners_one_downloads_and_both_get_the_same(
    provisioned: tuple[Path, list[str]],
) -> None:
    _, said = provisioned
    assert sum("downloading" in text for text in said) == 1
    assert len({text.splitlines()[-1] for text in said}) == 1


def test_a_provisioned_emulator_is_found_with_no_apt_and_no_network(
    provisioned: tuple[Path, list[str]], bare_path: Path
) -> None:
    tools, _ = provisioned
    lines: list[str] = []
    assert ensure_qemu(tools, log=lines.append) == provision_qemu(tools, log=lines.append)
    assert lines == []


def test_nothing_but_the_emulator_and_its_provenance_is_left(provisioned: tuple[Path, list[str]]) -> None:
    tools, _ = provisioned
    (version,) = (path for path in (tools / "qemu").iterdir() if path.name != ".lock")
    assert {path.name for path in version.iterdir()} == {"qemu-aarch64", "provenance.json"}


def test_an_emulator_without_sme_is_told_from_one_with_it(
    provisioned: tuple[Path, list[str]], tmp_path: Path
) -> None:
    real = provision_qemu(provisioned[0], log=_silent)
    without = tmp_path / "qemu-aarch64"
    without.write_text(f'#!/bin/sh\nshift 2\nexec "{real.path}" -cpu max,sme=off "$@"\n')
    without.chmod(0o755)
    assert not offers_sme2(Qemu(without, real.version, "path"))


def test_a_download_that_breaks_off_leaves_nothing(
    one_suite: None, make_program: MakeProgram, tmp_path: Path
) -> None:
    make_program(
        "apt-get", _real_but_for("download", "echo half > qemu-user.deb; echo 'E: cut off' >&2; exit 100")
    )
    with pytest.raises(TargetUnavailable, match="cut off") as caught:
        provision_qemu(tmp_path / "tools", log=_silent)
    assert "SME2_QEMU" in str(caught.value)
    _assert_nothing_provisioned(tmp_path / "tools")


@pytest.mark.thorough
def test_a_damaged_package_leaves_nothing(one_suite: None, make_program: MakeProgram, tmp_path: Path) -> None:
    make_program("apt-get", _real_but_for("download", "echo not a package > qemu-user.deb"))
    with pytest.raises(TargetUnavailable, match="package is damaged"):
        provision_qemu(tmp_path / "tools", log=_silent)
    _assert_nothing_provisioned(tmp_path / "tools")


@pytest.mark.thorough
def test_what_a_killed_provisioner_left_is_cleared_away_by_the_next(
    one_suite: None, own_temporary_folder: None, make_program: MakeProgram, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    make_program("apt-get", _real_but_for("download", f"touch '{started}'; sleep 600"))
    killed = _start_provisioner(tmp_path / "tools")
    _wait_for(started, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert qemu._provisioned_qemu(tmp_path / "tools") is None
    assert list((tmp_path / "tools" / "qemu").glob(".staging-*"))

    make_program("apt-get", _real_but_for("download", "exit 100"))
    with pytest.raises(TargetUnavailable):
        provision_qemu(tmp_path / "tools", log=_silent)
    _assert_nothing_provisioned(tmp_path / "tools")


def test_a_suite_signed_by_an_unknown_key_is_refused_with_a_remedy(
    one_suite: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where apt's own user can read it: pytest's folders are closed.
    with tempfile.NamedTemporaryFile(suffix=".gpg") as no_keys:
        Path(no_keys.name).chmod(0o644)
        monkeypatch.setattr(debian, "_keyrings", lambda signed_by: (Path(no_keys.name),))
        with pytest.raises(TargetUnavailable, match="key") as caught:
            provision_qemu(tmp_path / "tools", log=_silent)
    assert caught.value.remedy is not None
    assert "debian-archive-keyring" in caught.value.remedy
    _assert_nothing_provisioned(tmp_path / "tools")


def test_a_machine_without_apt_is_told_what_to_install(
    bare_path: Path, tmp_path: Path, supported_host: None
) -> None:
    with pytest.raises(TargetUnavailable, match="apt-get") as caught:
        provision_qemu(tmp_path / "tools", log=_silent)
    assert "install QEMU >= 10.1" in str(caught.value)


def test_a_host_that_cannot_run_the_emulator_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(TargetUnavailable, match="this is Darwin"):
        provision_qemu(tmp_path, log=_silent)


@pytest.mark.thorough
def test_the_emulator_for_an_x86_64_host_is_fetched_too(supported_host: None, tmp_path: Path) -> None:
    program, package = qemu._fetch_program(tmp_path / "package", architecture="amd64", log=_silent)
    header = program.read_bytes()[:20]
    assert header[:5] == b"\x7fELF\x02"
    assert int.from_bytes(header[18:20], "little") == 62  # EM_X86_64
    assert b"qemu-aarch64 version" in program.read_bytes()
    assert package.name == "qemu-user"


def test_without_any_emulator_nothing_is_found(bare_path: Path, tmp_path: Path) -> None:
    assert find_qemu(tmp_path / "tools") is None


def test_a_new_enough_emulator_on_path_is_taken(bare_path: Path, tmp_path: Path) -> None:
    program = _emulator(bare_path, "10.1.0")
    assert find_qemu(tmp_path) == Qemu(program, (10, 1, 0), "path")


def test_the_emulator_named_by_hand_comes_before_the_one_on_path(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _emulator(bare_path, "10.1.0")
    named = _emulator(tmp_path, "10.2.1")
    monkeypatch.setenv(qemu.ENVIRONMENT_VARIABLE, str(named))
    assert find_qemu(tmp_path) == Qemu(named, (10, 2, 1), "env")


@pytest.mark.parametrize("version", ["7.2.17", "10.0.9"])
def test_a_too_old_emulator_on_path_is_passed_over_and_the_reason_is_kept(
    version: str, bare_path: Path, tmp_path: Path
) -> None:
    _emulator(bare_path, version)
    newer = _emulator(bare_path, "11.1.2", name="qemu-aarch64-static")
    search = search_qemu(tmp_path)
    assert search.found == Qemu(newer, (11, 1, 2), "path")
    (reason,) = search.passed_over
    assert f"is QEMU {version}" in reason
    assert "10.1.0" in reason


def test_the_reason_for_passing_over_is_in_the_message_when_nothing_else_is_there(
    bare_path: Path, tmp_path: Path
) -> None:
    _emulator(bare_path, "7.2.17")
    with pytest.raises(TargetUnavailable, match=r"7\.2\.17"):
        ensure_qemu(tmp_path, log=_silent)


def test_the_newest_finished_one_is_taken_and_unfinished_ones_are_not(
    bare_path: Path, tmp_path: Path
) -> None:
    for folder in ("10.1.0", "10.10.0", "10.2.0", "9.0.0", ".staging-x"):
        (tmp_path / "qemu" / folder).mkdir(parents=True)
        _emulator(tmp_path / "qemu" / folder, "11.0.0")
    (tmp_path / "qemu" / "12.0.0").mkdir()
    found = find_qemu(tmp_path)
    assert found is not None
    assert found.version == (10, 10, 0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such file"),
        ("#!/bin/sh\necho hello\n", "does not say that it is qemu-aarch64"),
        ("#!/bin/sh\nexit 1\n", "does not say that it is qemu-aarch64"),
        ("#!/no/such/interpreter\n", "does not run"),
        ("#!/bin/sh\necho qemu-aarch64 version 7.2.17\n", r"is QEMU 7\.2\.17"),
        ("#!/bin/sh\necho qemu-x86_64 version 11.0.0\n", "does not say that it is qemu-aarch64"),
    ],
)
def test_nonsense_named_by_hand_is_an_error_and_not_passed_over(
    content: str | None, complaint: str, bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _emulator(bare_path, "11.1.2")
    named = tmp_path / "named"
    if content is not None:
        named.write_text(content)
        named.chmod(0o755)
    monkeypatch.setenv(qemu.ENVIRONMENT_VARIABLE, str(named))
    with pytest.raises(TargetUnavailable, match=complaint) as caught:
        find_qemu(tmp_path)
    assert "SME2_QEMU" in str(caught.value)


def test_an_emulator_that_does_not_run_offers_nothing(tmp_path: Path) -> None:
    assert not offers_sme2(Qemu(tmp_path / "missing", (11, 0, 0), "env"))


def _assert_nothing_provisioned(tools: Path) -> None:
    assert [path.name for path in (tools / "qemu").iterdir()] == [".lock"]


def _real_but_for(verb: str, script: str) -> str:
    """A program that is the real apt-get, but for one verb."""
    real = shutil.which("apt-get", path=os.defpath)
    return f'case " $* " in *" {verb} "*) {script};; *) exec {real} "$@";; esac'


def _wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not file.exists():
        assert process.poll() is None, "the provisioner ended before it began to download"
        assert time.monotonic() < deadline, "the provisioner never began to download"
        time.sleep(0.05)
