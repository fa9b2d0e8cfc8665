"""Machines over SSH: addresses, who is let in, what is said when nobody is, what a machine is called."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import ConnectionLost, Refused, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import device_name
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.host import host_arch, host_device, host_facts
from sme2_assets.targets.remote.connection import Script
from sme2_assets.targets.ssh import connection as connection_module
from sme2_assets.targets.ssh.address import Address, parse_address, without_addresses
from sme2_assets.targets.ssh.connection import SshConnection
from sme2_assets.targets.ssh.target import SshTarget
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine

_NAME = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(
    host=_NAME | st.just("fe80::1") | st.just("::1"),
    user=st.none() | _NAME,
    port=st.none() | st.integers(1, 65535),
)
def test_an_address_is_read_back_as_it_was_written(host: str, user: str | None, port: int | None):
    address = Address(host, user, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pi@raspberrypi", "does not begin with ssh://"),
        ("ssh://", "names no host"),
        ("ssh://pi@", "names no host"),
        ("ssh://-oProxyCommand=reboot", "cannot be the name of a host"),
        ("ssh://-l@host", "cannot be the name of a user"),
        ("ssh://pi@host:99999", "'99999' is not a port"),
        ("ssh://pi@host:0", "'0' is not a port"),
        ("ssh://pi@host:ssh", "'ssh' is not a port"),
        ("ssh://pi@host/tmp", "after host and port"),
        ("ssh://pi@ho st", "cannot be the name of a host"),
        ("ssh://pi:secret@host", "only keys are used"),
        ("ssh://pi:my/secret@host", "only keys are used"),
        ("ssh://pi:sec?ret/secret\n@host", "only keys are used"),
        ("ssh://pi@home:secret@host", "only keys are used"),
        ("pi:secret@host", "only keys are used"),
        ("http://pi@host", "does not begin with ssh://"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_and_how_it_is_written(text: str, why: str):
    with pytest.raises(Sme2Error, match=why) as caught:
        parse_address(text)
    assert "ssh://user@host" in str(caught.value.remedy)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_is_an_option_of_the_client(text: str):
    try:
        address = parse_address("ssh://" + text)
    except Sme2Error:
        return
    assert not any(word.startswith("-") for word in address.words if word != "-p")


def test_a_device_of_linux_is_an_address(tmp_path: Path):
    assert isinstance(open_target("linux", Store(tmp_path), "ssh://pi@host"), SshTarget)
    with pytest.raises(Sme2Error, match="'R5CT123'") as caught:
        open_target("linux", Store(tmp_path), "R5CT123")
    assert "ssh://user@host" in str(caught.value.remedy)


@pytest.fixture
def trusted_again(ssh_machine: SshMachine) -> Iterator[SshMachine]:
    """A machine that a test may spoil; whole again afterwards."""
    ssh_machine.disconnect()
    allowed = ssh_machine.folder / "authorized_keys"
    keys = allowed.read_text()
    yield ssh_machine
    ssh_machine.disconnect()
    allowed.write_text(keys)
    ssh_machine.trust()


def _refused(machine: SshMachine) -> Refused:
    # Who waited for an answer to a question would be killed when its time is up, and be told that.
    with pytest.raises(Refused) as caught:
        machine.device.script(":")
    answer = machine.target().availability("off")
    assert (answer.ok, answer.detail, answer.remedy) == (False, caught.value.what, caught.value.remedy)
    with pytest.raises(Refused):
        machine.device.hold(Script("echo ready"), ready="ready", patience_s=120, on_line=print)
    return caught.value


def test_an_unknown_host_key_is_refused(trusted_again: SshMachine):
    (trusted_again.folder / "known_hosts").write_text("")
    refused = _refused(trusted_again)
    assert "host key" in refused.what
    assert "is not known here" in refused.what
    assert f"`ssh -p {trusted_again.port} pi@127.0.0.1`" in str(refused.remedy)


def test_a_host_key_that_changed_is_refused_and_never_taken(trusted_again: SshMachine):
    trusted_again.kill()
    trusted_again.new_host_key()
    trusted_again.start()
    refused = _refused(trusted_again)
    assert "a different host key from the one that is trusted" in refused.what
    assert f"ssh-keygen -R '[127.0.0.1]:{trusted_again.port}'" in str(refused.remedy)


def test_without_an_accepted_key_nobody_asks_for_a_password(trusted_again: SshMachine):
    (trusted_again.folder / "authorized_keys").write_text("")
    refused = _refused(trusted_again)
    assert "accepts no key of this user" in refused.what
    assert "ssh-copy-id" in str(refused.remedy)
    assert "ssh-add" in str(refused.remedy)


def test_a_machine_that_is_off_or_nowhere_is_out_of_reach(ssh_machine: SshMachine):
    ssh_machine.kill()
    ssh_machine.cut()
    with pytest.raises(ConnectionLost, match="Connection refused") as lost:
        ssh_machine.device.script(":")
    assert "was lost" not in lost.value.what, "there was none"
    assert "ssh -p" in str(lost.value.remedy)
    ssh_machine.start()
    nowhere = SshConnection(Address("no-such-host.invalid", "pi"))
    with pytest.raises(ConnectionLost, match=r"no-such-host\.invalid"):
        nowhere.script(":")


def test_a_machine_that_takes_the_call_and_says_nothing_is_given_up(
    ssh_machine: SshMachine, monkeypatch: pytest.MonkeyPatch
):
    # Of this one alone: a real machine may take longer, also to part from.
    with socket.create_server(("127.0.0.1", 0)) as silent, monkeypatch.context() as patch:
        patch.setattr(connection_module, "CONNECT_SECONDS", 1)
        mute = SshConnection(Address("127.0.0.1", "pi", silent.getsockname()[1]))
        with pytest.raises(ConnectionLost, match="timed out"):
            mute.script(":")


def test_a_machine_that_comes_back_with_another_key_ends_the_session_at_once(
    trusted_again: SshMachine, tmp_path: Path
):
    target = trusted_again.target()
    with target.leased(tmp_path / "leases", print):
        trusted_again.kill()
        trusted_again.new_host_key()
        trusted_again.start()
        problems: list[str] = []
        with pytest.raises(Refused, match="host key"):
            target.recover(600, problems.append)
        assert problems == [], "it was asked once, and not again"


def test_a_shell_that_greets_at_every_login_is_named_for_it(ssh_machine: SshMachine, tmp_path: Path):
    users, greeting = ssh_machine.folder / "passwd", ssh_machine.folder / "greeting"
    greeting.write_text('#!/bin/sh\necho "Welcome to this machine!"\nexec /bin/sh "$@"\n')
    greeting.chmod(0o755)
    before = users.read_text()
    users.write_text(before.replace(":/bin/sh", f":{greeting}"))
    try:
        ssh_machine.disconnect()
        with ssh_machine.target().workspace() as workspace:
            workspace.run(["touch", workspace.path("made")], {}, 120)
            with pytest.raises(RunnerError, match="unpacked") as caught:
                workspace.get("made", tmp_path / "made")
    finally:
        users.write_text(before)
    assert "must print nothing" in str(caught.value.remedy)
    assert not (tmp_path / "made").exists()


def test_a_client_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_SSH", str(tmp_path / "ssh"))
    with pytest.raises(TargetUnavailable, match="SME2_SSH"):
        connection_module.require_ssh()
    monkeypatch.delenv("SME2_SSH")
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = SshTarget("ssh://pi@host").availability("off")
    assert "was not found" in answer.detail
    assert "openssh" in str(answer.remedy)


def test_a_machine_is_called_as_it_calls_itself(ssh_machine: SshMachine, monkeypatch: pytest.MonkeyPatch):
    machine_id = (ssh_machine.folder / "machine-id").read_text().strip()
    facts = ssh_machine.target().facts()
    assert ssh_machine.target().device == device_name(host_facts().cpu, machine_id)
    assert ssh_machine.target().device != host_device()
    here = host_facts()
    assert (facts.arch, facts.cpu, facts.cores, facts.clusters) == (
        here.arch,
        here.cpu,
        here.cores,
        here.clusters,
    )
    assert (facts.os, facts.kernel, facts.model) == (here.os, here.kernel, here.model)
    assert machine_id not in str(facts)


def test_a_relative_cache_folder_on_the_machine_is_ignored_as_its_specification_says(
    ssh_machine: SshMachine,
):
    users, shell = ssh_machine.folder / "passwd", ssh_machine.folder / "relative"
    shell.write_text('#!/bin/sh\nexport XDG_CACHE_HOME=cache\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    before = users.read_text()
    users.write_text(before.replace(":/bin/sh", f":{shell}"))
    try:
        ssh_machine.disconnect()
        assert ssh_machine.target().root == ssh_machine.root
        shell.write_text(shell.read_text().replace("=cache", "=/var/cache/pi"))
        assert ssh_machine.target().root == "/var/cache/pi/sme2"
    finally:
        users.write_text(before)
        ssh_machine.disconnect()


def test_a_text_has_names_in_place_of_addresses():
    names = {parse_address("ssh://pi@10.0.0.7:2222"): "pi5", parse_address("ssh://bench"): "board"}
    for text, instead in {
        "The CPU of ssh://pi@10.0.0.7:2222.": "The CPU of pi5.",
        "(ssh: connect to host 10.0.0.7 port 2222: refused)": "(ssh: connect to host pi5 port 2222: refused)",
        "`ssh -p 2222 pi@10.0.0.7 true`": "`ssh -p 2222 pi5 true`",
        "`ssh-keygen -R '[10.0.0.7]:2222'`": "`ssh-keygen -R 'pi5'`",
        "At ssh://bench, not in a bench: `ssh bench`.": "At board, not in a bench: `ssh board`.",
        "ssh: Could not resolve hostname lab.example: no": "ssh: Could not resolve hostname (address): no",
        "ssh://me@elsewhere. me@elsewhere: no": "(address). (address): no",
        "Connection closed by 192.0.2.1 port 22": "Connection closed by (address) port 22",
        "10.0.0.77 is another": "10.0.0.77 is another",
    }.items():
        assert without_addresses(text, names) == instead


SME2_CPU = (
    "processor\t: 0\nFeatures\t: fp asimd sve2 sme sme2\nCPU implementer\t: 0x41\nCPU part\t: 0xd8c\n\n"
    "processor\t: 1\nFeatures\t: fp asimd sve2 sme sme2\nCPU implementer\t: 0x41\nCPU part\t: 0xd8c\n"
)


@pytest.fixture
def planted(ssh_machine: SshMachine) -> Iterator[SshMachine]:
    yield ssh_machine
    ssh_machine.say_machine(None)
    ssh_machine.plant_cpu(None)


def test_both_states_are_there_where_the_cpu_has_sme2(planted: SshMachine):
    planted.say_machine("aarch64")
    planted.plant_cpu(SME2_CPU)
    target = planted.target()
    assert [target.availability(sme2).ok for sme2 in ("off", "on")] == [True, True]
    assert target.fidelity == "hardware"
    assert target.device.startswith("c1-ultra-")
    planted.plant_cpu(SME2_CPU.replace(" sme2\nCPU implementer\t: 0x41\nCPU part\t: 0xd8c\n\n", "\n\n"))
    off, on = (planted.target().availability(sme2) for sme2 in ("off", "on"))
    assert off.ok
    assert not on.ok
    assert "has no SME2" in on.detail


def test_a_machine_of_another_cpu_is_refused_or_a_reference(
    planted: SshMachine, request: pytest.FixtureRequest
):
    other = "x86_64" if host_arch() == "aarch64" else "riscv64"
    planted.say_machine(other)
    target = planted.target()
    answer = target.availability("off")
    assert not answer.ok
    assert f"is {other}, and its runner cannot be built on {host_arch()}" in answer.detail
    assert target.fidelity == "reference"
    request.getfixturevalue("x86_64_host")
    planted.say_machine("amd64")
    off, on = (planted.target().availability(sme2) for sme2 in ("off", "on"))
    assert off.ok
    assert "a reference on x86_64, which says nothing about SME2" in off.detail
    assert not on.ok
    assert "x86_64, which has no SME2" in on.detail


def test_only_linux_is_measured(planted: SshMachine):
    fake = planted.folder / "bin" / "uname"
    before = fake.read_text()
    fake.write_text('#!/bin/sh\n[ "$1" = -s ] && echo Darwin && exit\nexec /bin/uname "$@"\n')
    answer = planted.target().availability("off")
    fake.write_text(before)
    assert "is not Linux but 'Darwin'" in answer.detail
