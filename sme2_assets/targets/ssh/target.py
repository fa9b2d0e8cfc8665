"""One Linux machine over SSH as a target of platform `linux`: what it is, which SME2 states it offers."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property

from sme2_assets.errors import Refused, Sme2Error
from sme2_assets.evidence.device import AARCH64, Fidelity, architecture, device_name, native_fidelity
from sme2_assets.targets.base import MachineFacts
from sme2_assets.targets.host import host_arch
from sme2_assets.targets.reading import printable_name
from sme2_assets.targets.remote.connection import shell_program
from sme2_assets.targets.remote.facts import FACTS, ask, facts_of
from sme2_assets.targets.remote.target import RemoteTarget
from sme2_assets.targets.remote.workspace import root_folder
from sme2_assets.targets.ssh.address import parse_address
from sme2_assets.targets.ssh.connection import ROOT_VARIABLE, SshConnection
from sme2_assets.toolchain import Availability

# A relative path there is to be ignored, as the XDG specification says.
_ABSOLUTE_CACHE = 'case "${XDG_CACHE_HOME-}" in /*) ;; *) unset XDG_CACHE_HOME;; esac\n'
_QUESTION = FACTS + _ABSOLUTE_CACHE + shell_program("host")


class SshTarget(RemoteTarget):
    """A machine by its address. It is asked what it is once, when that is first needed."""

    platform = "linux"
    look = "Check where the address leads"

    def __init__(self, address: str) -> None:
        super().__init__()
        self._connection = SshConnection(parse_address(address))
        self.address = self._connection.name

    @property
    def handle(self) -> SshConnection:
        return self._connection

    @cached_property
    def _answer(self) -> dict[str, str]:
        return ask(self.handle, _QUESTION)

    @cached_property
    def _facts(self) -> MachineFacts:
        answer = self._answer
        facts = facts_of(answer, self._installation)
        board = answer.get("board", "").strip("\0 \n")
        return replace(facts, arch=architecture(facts.arch), model=printable_name(board) if board else None)

    @property
    def _installation(self) -> str:
        """As in `host`: the same machine is the same device, locally and remotely."""
        machine_id = self._answer.get("machine-id", "").strip()
        known = re.fullmatch(r"[0-9a-f]{32}", machine_id)
        return machine_id if known else self._answer.get("node", "").strip()

    @cached_property
    def device(self) -> str:  # type: ignore[override]
        return device_name(self._facts.cpu, self._installation)

    @cached_property
    def fidelity(self) -> Fidelity:  # type: ignore[override]
        return native_fidelity(self._facts.arch)

    @cached_property
    def bundle_arch(self) -> str:  # type: ignore[override]
        return self._facts.arch

    @property
    def root(self) -> str:
        cache = self._answer.get("cache", "").strip()
        return root_folder(ROOT_VARIABLE, f"{cache}/sme2")

    def facts(self) -> MachineFacts:
        return self._facts

    def availability(self, sme2: str) -> Availability:
        try:
            facts, system = self._facts, self._answer.get("system", "").strip()
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        if system != "Linux":
            return Availability(
                False, f"{self.address} is not Linux but {system!r}.", "Name a Linux machine."
            )
        if facts.arch not in (AARCH64, host_arch()):
            return Availability(
                False,
                f"{self.address} is {facts.arch}, and its runner cannot be built on {host_arch()}.",
                f"Name an aarch64 machine, or run sme2 on an {facts.arch} machine.",
            )
        if sme2 == "on" and self.fidelity == "reference":
            return Availability(
                False,
                f"{self.address} is {facts.arch}, which has no SME2.",
                "linux-sme2_off gives a reference there: times that say nothing about SME2.",
            )
        if sme2 == "on" and "sme2" not in facts.features:
            return Availability(
                False,
                f"the CPU of {self.address} ({facts.cpu}), or its kernel, has no SME2.",
                "Measure on a machine with SME2, or only SME2 off there as a baseline (`--sme2 off`).",
            )
        reference = f": a reference on {facts.arch}, which says nothing about SME2"
        return Availability(
            True, f"{facts.cpu}, {self.address}" + (reference if self.fidelity == "reference" else "")
        )

    def _reconnected(self) -> str:
        # The client may still rely on a connection that is gone.
        self.handle.disconnect()
        try:
            self.handle.script(":")
        except Refused:
            raise
        except Sme2Error as error:
            return error.what
        return ""
