"""What is there, what is missing, how to get it."""

from __future__ import annotations

import platform as host
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from sme2_assets.errors import Sme2Error
from sme2_assets.runner.build import find_compiler, find_toolchain
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.host import host_facts, host_has_sme2

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
    yield (
        Finding("SME2 in this CPU", "ok", "yes: SME2 on and off can be measured natively")
        if host_has_sme2()
        else Finding(
            "SME2 in this CPU",
            "optional",
            f"no ({facts.cpu}): natively only SME2 off can be measured",
            "Use a machine with SME2, e.g. an Apple M4, or the emulated platform for kernels and outputs.",
        )
    )
    emulated = open_target("emulated", store).availability("on")
    yield Finding("emulator", "ok" if emulated.ok else "optional", emulated.detail, emulated.remedy)
    yield from _android()
    yield _disk(store)


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


def _android() -> Iterator[Finding]:
    adb = shutil.which("adb")
    if adb is None:
        yield Finding(
            "adb",
            "optional",
            "not on PATH; this version does not measure on Android devices yet",
            "Nothing to do for linux, mac and emulated.",
        )
        return
    listing = subprocess.run([adb, "devices"], capture_output=True, text=True, timeout=30, check=False)
    devices = [line.split("\t") for line in listing.stdout.splitlines() if "\t" in line]
    yield Finding("adb", "ok", adb)
    yield Finding(
        "Android devices",
        "optional",
        ", ".join(f"{serial} ({state})" for serial, state in devices) or "none connected",
        "This version does not measure on Android devices yet.",
    )


def _disk(store: Store) -> Finding:
    folder = next(path for path in (store.root, *store.root.parents) if path.exists())
    free_gib = shutil.disk_usage(folder).free / 2**30
    detail = f"{free_gib:.1f} GiB free at {folder}"
    if free_gib < MIN_FREE_GIB:
        return Finding("disk", "missing", detail, f"Free at least {MIN_FREE_GIB:.0f} GiB, or set SME2_DATA.")
    return Finding("disk", "ok", detail)
