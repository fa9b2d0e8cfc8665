"""What is there, what is missing, how to get it."""

from __future__ import annotations

import platform as host
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from sme2_assets.errors import Sme2Error
from sme2_assets.runner.build import find_compiler, find_toolchain
from sme2_assets.runner.bundle import host_is_target
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.android.adb import require_adb
from sme2_assets.targets.base import MachineFacts
from sme2_assets.targets.cross_compiler import compiler_availability
from sme2_assets.targets.host import host_device, host_facts, host_has_sme2, is_arm64

Status = Literal["ok", "missing", "optional"]
MIN_FREE_GIB = 3.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `missing` is needed for any measurement, `optional` for more."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def examine(store: Store) -> list[Finding]:
    return list(_findings(store))


def _findings(store: Store) -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{host.python_version()} at {sys.prefix}")
    yield _attempt("C++ compiler", lambda: " ".join(find_compiler()))
    yield _attempt("CMake and ExecuTorch's C++ SDK", lambda: _toolchain_text())
    for package in ("executorch", "torch", "dagster", "duckdb"):
        yield _package(package)
    facts = host_facts()
    yield Finding("host", "ok", f"{facts.os}, {facts.arch}, {facts.cpu}, {facts.cores} cores")
    yield Finding("device", "ok", f"{host_device()}: what this host is called in results")
    yield _sme2(facts)
    emulated = open_target("emulated", store).availability("on")
    yield Finding("emulator", "ok" if emulated.ok else "optional", emulated.detail, emulated.remedy)
    if not host_is_target():
        yield _cross_compiler(store)
    yield from _android()
    yield Finding(
        "data folder", "ok", f"{store.root}{'' if store.root.is_dir() else ', made when it is needed'}"
    )
    yield _disk(store)


def _sme2(facts: MachineFacts) -> Finding:
    name = "SME2 in this CPU"
    if host_has_sme2():
        return Finding(name, "ok", "yes: SME2 on and off can be measured natively")
    remedy = "Use a machine with SME2, e.g. an Apple M4, or the emulated platform for kernels and outputs."
    if not is_arm64():
        told = f"no ({facts.cpu}): native times on {facts.arch} are a reference and say nothing about SME2"
        return Finding(name, "optional", told, remedy)
    return Finding(name, "optional", f"no ({facts.cpu}): natively only SME2 off can be measured", remedy)


def _attempt(name: str, find) -> Finding:  # type: ignore[no-untyped-def]
    try:
        return Finding(name, "ok", find())
    except Sme2Error as error:
        return Finding(name, "missing", error.what, error.remedy)


def _toolchain_text() -> str:
    tools = find_toolchain()
    return f"CMake {tools.cmake_version}, ExecuTorch {tools.executorch_version}"


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", "Run `make setup`.")


def _cross_compiler(store: Store) -> Finding:
    """What builds the runner of the emulated platform and of Android devices on this host."""
    found = compiler_availability(store.tools)
    return Finding("compiler for aarch64 Linux", "ok" if found.ok else "optional", found.detail, found.remedy)


def _android() -> Iterator[Finding]:
    try:
        adb = require_adb()
        listed = adb.devices()
    except Sme2Error as error:
        yield Finding("adb", "optional", error.what, error.remedy)
        return
    yield Finding("adb", "ok", str(adb.path))
    unusable = [device for device in listed if not device.usable]
    names = ", ".join(f"{device.serial} ({device.state})" for device in listed)
    yield Finding(
        "Android devices",
        "ok" if listed and not unusable else "optional",
        names or "none connected",
        " ".join(f"{device.serial}: {device.remedy}" for device in unusable)
        or "Connect one by USB with USB debugging on, or by `adb connect`; then `sme2 devices`.",
    )


def _disk(store: Store) -> Finding:
    folder = next(path for path in (store.root, *store.root.parents) if path.exists())
    free_gib = shutil.disk_usage(folder).free / 2**30
    detail = f"{free_gib:.1f} GiB free at {folder}"
    if free_gib < MIN_FREE_GIB:
        return Finding("disk", "missing", detail, f"Free at least {MIN_FREE_GIB:.0f} GiB, or set SME2_DATA.")
    return Finding("disk", "ok", detail)
