"""A device behind each transport in turn: the same tests for all."""

from __future__ import annotations

import pytest

from sme2_assets_tests.targets.android.adb_loopback import LoopbackDevice
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine

RemoteDevice = LoopbackDevice | SshMachine


@pytest.fixture(params=["loopback_device", "ssh_machine"], ids=["adb", "ssh"])
def remote_device(request: pytest.FixtureRequest) -> RemoteDevice:
    device: RemoteDevice = request.getfixturevalue(request.param)
    return device
