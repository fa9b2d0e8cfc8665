"""What is on this machine, what is missing, how to get it."""

from __future__ import annotations

import os
import platform as host
import shutil
import sys
from importlib import metadata
from pathlib import Path

from sme2_assets.diagnostics.steps import Checkup, detail_of
from sme2_assets.errors import Sme2Error
from sme2_assets.runner.build import find_compiler, find_toolchain
from sme2_assets.runner.bundle import host_is_target
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.android.adb import require_adb
from sme2_assets.targets.host import host_device, host_facts, host_has_sme2, is_arm64
from sme2_assets.targets.inventory import read_inventory
from sme2_assets.targets.ssh.connection import require_ssh
from sme2_assets.toolchain.cross_compiler import compiler_availability

MIN_FREE_GIB = 3.0


def examine(store: Store) -> Checkup:
    """Looks at all of it. Something that only some measurements need is just a note if missing."""
    made = Checkup(host_device(), "machine")
    with made.step("Python") as step:
        step.detail = f"{host.python_version()} at {sys.prefix}"
    check_build_tools(made)
    for package in ("executorch", "torch", "dagster", "duckdb"):
        with made.step(package) as step:
            step.detail = _version_of(package)
    with made.step("host") as step:
        facts = host_facts()
        step.detail = f"{facts.os}, {facts.arch}, {facts.cpu}, {facts.cores} cores"
    with made.step("device") as step:
        step.detail = f"{host_device()}: what this host is called in results"
    with made.step("SME2 in this CPU", optional=True) as step:
        step.detail = _sme2()
    with made.step("emulator", optional=True) as step:
        step.detail = detail_of(open_target("emulated", store).availability("on"))
    if not host_is_target():
        # It builds the runner of the emulated platform and of devices on this host.
        with made.step("compiler for aarch64 Linux", optional=True) as step:
            step.detail = detail_of(compiler_availability(store.tools))
    _android(made)
    with made.step("ssh, for other Linux machines", optional=True) as step:
        step.detail = require_ssh()
    with made.step("inventory of devices", optional=True) as step:
        names = ", ".join(read_inventory(store).devices)
        step.detail = f"{names}: see `sme2 devices`" if names else "none: docs/devices.md says what it is for"
    with made.step("data folder") as step:
        step.detail = _data_folder(store.root)
    check_disk(made, store)
    with made.step("runs in the tables", optional=True) as step:
        step.detail = _tables(store)
    return made


def _data_folder(root: Path) -> str:
    if not root.is_dir():
        return f"{root}, created when needed"
    if not os.access(root, os.W_OK):
        raise Sme2Error(
            f"{root} cannot be written: it can be queried, and nothing can be measured.",
            "Make it writable, or name another folder with --data or $SME2_DATA.",
        )
    return str(root)


def _tables(store: Store) -> str:
    """Whether the tables match the run folders, as far as a quick look can tell."""
    if not store.warehouse.is_dir():
        return "nothing has been measured yet"
    # Imported here: no other step needs DuckDB.
    from sme2_assets.warehouse.rebuild import runs_in_no_table, runs_of_other_code

    if missing := runs_in_no_table(store):
        raise Sme2Error(
            f"{len(missing)} run folders are in no table, e.g. {missing[0].name}.",
            "Run `sme2 warehouse sync`, which adds them, or says why it cannot.",
        )
    if other := runs_of_other_code(store):
        raise Sme2Error(
            f"The rows of {other} runs were made by the code of another release.",
            "Run `sme2 warehouse rebuild`, which makes them again with this one.",
        )
    return "every run folder is in the tables"


def check_build_tools(made: Checkup) -> None:
    """What every runner is built with."""
    with made.step("C++ compiler") as step:
        step.detail = " ".join(find_compiler())
    with made.step("CMake and ExecuTorch's C++ SDK") as step:
        tools = find_toolchain()
        step.detail = f"CMake {tools.cmake_version}, ExecuTorch {tools.sdk.version}"


def check_disk(made: Checkup, store: Store) -> None:
    with made.step("disk") as step:
        folder = existing(store.root)
        free_gib = shutil.disk_usage(folder).free / 2**30
        step.detail = f"{free_gib:.1f} GiB free at {folder}"
        if free_gib < MIN_FREE_GIB:
            raise Sme2Error(
                f"{MIN_FREE_GIB:.0f} GiB are needed.",
                f"Free at least {MIN_FREE_GIB:.0f} GiB, or set SME2_DATA.",
            )


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise Sme2Error("It is not installed.", "Run `make setup`.") from None


def _sme2() -> str:
    if host_has_sme2():
        return "yes: SME2 on and off can be measured natively"
    facts = host_facts()
    if is_arm64():
        what = "natively only SME2 off can be measured"
    else:
        what = f"native times on {facts.arch} are a reference and say nothing about SME2"
    raise Sme2Error(
        f"no ({facts.cpu}): {what}",
        "Use a machine with SME2, e.g. an Apple M4, or the emulated platform for kernels and outputs.",
    )


def _android(made: Checkup) -> None:
    listed = None
    with made.step("adb", optional=True) as step:
        adb = require_adb()
        listed = adb.devices()
        step.detail = str(adb.path)
    if listed is None:
        return
    with made.step("Android devices", optional=True) as step:
        unusable = [device for device in listed if not device.usable]
        names = ", ".join(f"{device.serial} ({device.state})" for device in listed)
        if unusable or not listed:
            raise Sme2Error(
                names or "none is connected",
                " ".join(f"{device.serial}: {device.remedy}" for device in unusable)
                or "Connect one by USB with USB debugging on, or by `adb connect`; then `sme2 devices`.",
            )
        step.detail = names
