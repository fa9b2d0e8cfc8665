"""Targets that run as processes of this host: natively, or under the emulator."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from sme2_assets.errors import RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import AARCH64, native_fidelity
from sme2_assets.evidence.leftovers import workspace_folder
from sme2_assets.targets.base import Completed, MachineFacts, Program, Target, Workspace
from sme2_assets.targets.contained import run_contained
from sme2_assets.targets.host import (
    host_arch,
    host_cpus,
    host_device,
    host_facts,
    host_has_sme2,
    host_platform,
    is_arm64,
)
from sme2_assets.targets.lease import beside_sessions
from sme2_assets.targets.shapes import DEFAULT, EmulatedCpu
from sme2_assets.toolchain import Availability
from sme2_assets.toolchain.cross_compiler import CrossCompiler, compiler_availability, find_cross_compiler
from sme2_assets.toolchain.qemu import Qemu, ensure_qemu, find_qemu

HOST_NAMES = {"linux": "Linux", "mac": "macOS"}


class LocalWorkspace(Workspace):
    """A temporary folder on this host; commands may be wrapped, e.g. by an emulator."""

    def __init__(self, root: Path, wrapper: Sequence[str] = ()) -> None:
        self.root = root
        self.wrapper = list(wrapper)

    def install(self, program: Program) -> list[str]:
        return program.command_in(str(program.folder))

    def put(self, local: Path) -> str:
        return str(local)

    def path(self, name: str) -> str:
        return str(self.root / name)

    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Completed:
        return self._run([*self.wrapper, *command], env, timeout_s)

    def run_logged(
        self, command: Sequence[str], env: Mapping[str, str], timeout_s: float, log: int
    ) -> Completed:
        logging = ["-d", "in_asm,exec,nochain", "-D", f"/dev/fd/{log}"]
        return self._run([*self.wrapper, *logging, *command], env, timeout_s, log)

    def _run(self, full: list[str], env: Mapping[str, str], timeout_s: float, *inherited: int) -> Completed:
        started = time.monotonic()
        returncode, out, err = run_contained(full, env, self.root, timeout_s, inherited)
        return Completed(full, returncode, out, err, time.monotonic() - started)

    def get(self, name: str, local: Path) -> None:
        source = self.root / name
        if not source.exists():
            raise RunnerError(f"The runner succeeded but did not write {name}.", "Report this as a defect.")
        local.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source, local)


class NativeTarget(Target):
    """This host's own CPU: platform `linux` or `mac`."""

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.fidelity = native_fidelity(host_arch())
        self.device = host_device()

    def availability(self, sme2: str) -> Availability:
        if host_platform() != self.platform:
            return Availability(
                False,
                f"this host is not {HOST_NAMES[self.platform]}.",
                "Name a Linux machine with --device ssh://user@host."
                if self.platform == "linux"
                else "Run sme2_assets on a macOS machine to measure there.",
            )
        if sme2 == "on" and self.fidelity == "reference":
            return Availability(
                False,
                f"{host_arch()} has no SME2.",
                "Use the `emulated` platform to see which operators take SME2 kernels. "
                f"{self.platform}-sme2_off gives a reference: times that say nothing about SME2.",
            )
        if sme2 == "on" and not host_has_sme2():
            return Availability(
                False,
                f"this CPU ({host_facts().cpu}) has no SME2.",
                "Measure on a machine with SME2 (e.g. an Apple M4, or a Linux machine by --device "
                "ssh://user@host), use the `emulated` platform to see which "
                f"operators take SME2 kernels, or measure only {self.platform}-sme2_off as a baseline.",
            )
        cpu = host_facts().cpu
        if self.fidelity == "reference":
            return Availability(True, f"{cpu}: a reference on {host_arch()}, which says nothing about SME2")
        return Availability(True, cpu)

    def facts(self) -> MachineFacts:
        return host_facts()

    def cpus(self, choice: str) -> tuple[int, ...]:
        return host_cpus(choice) if self.platform == "linux" else super().cpus(choice)

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with workspace_folder() as root:
            yield LocalWorkspace(root)


class EmulatedTarget(Target):
    """An aarch64 CPU with SME2 under QEMU: kernels and outputs are real, times mean nothing.

    Its device is the emulated CPU, the same on every host; the host is only what a session occupies.
    """

    platform = "emulated"
    fidelity = "emulated"
    kernel_pass = "work"
    arms_at_once: ClassVar[bool] = True

    def __init__(self, tools: Path, emulated: EmulatedCpu = DEFAULT) -> None:
        self.tools = tools
        self.emulated = emulated
        self.device = str(emulated)
        # A host with another CPU has neither the loader nor the libraries of an aarch64 program.
        self.bundled = not is_arm64()

    def availability(self, sme2: str) -> Availability:
        if host_platform() != "linux":
            return Availability(
                False,
                "QEMU can emulate Linux programs only on Linux, and this host is not Linux.",
                "Use a Linux machine, aarch64 or x86_64 (a cloud instance will do), or measure natively.",
            )
        try:
            qemu = find_qemu(self.tools)
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        if qemu is None:
            return Availability(
                False,
                "no QEMU >= 10.1 was found, the first that emulates SME2.",
                "Run `sme2 emulator`, which fetches one without root; or put qemu-aarch64 >= 10.1 on PATH; "
                "or point SME2_QEMU at one.",
            )
        if self.bundled and not (compiler := compiler_availability(self.tools)).ok:
            return compiler
        return Availability(True, _qemu_name(qemu))

    def provision(self, log: Callable[[str], None]) -> tuple[Qemu, CrossCompiler | None]:
        """Finds or fetches all that emulation needs here; a compiler only if the host has another CPU."""
        qemu = ensure_qemu(self.tools, log=log)
        return qemu, find_cross_compiler(self.tools, log=log) if self.bundled else None

    def facts(self) -> MachineFacts:
        # Programs do not see the host's CPU; the runner reports the features that the emulator offers.
        return replace(
            host_facts(),
            arch=AARCH64,
            cpu=f"QEMU -cpu {self.emulated.option}",
            emulator=_qemu_name(self._qemu()),
            features=(),
            clusters=(),
            sme_vector_bits=None,
        )

    @property
    def occupied(self) -> str:
        return host_device()

    @contextmanager
    def leased(self, leases: Path, log: Callable[[str], None], what: str = "") -> Iterator[Target]:
        with beside_sessions(leases, self.occupied, log):
            yield self

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with workspace_folder() as root:
            yield LocalWorkspace(root, wrapper=[str(self._qemu().path), "-cpu", self.emulated.option])

    def _qemu(self) -> Qemu:
        qemu = find_qemu(self.tools)
        if qemu is None:
            raise TargetUnavailable("No QEMU >= 10.1 was found.", "Run `sme2 emulator`.")
        return qemu


def _qemu_name(qemu: Qemu) -> str:
    return "QEMU " + ".".join(str(part) for part in qemu.version)
