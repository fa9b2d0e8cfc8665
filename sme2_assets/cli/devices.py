"""`sme2 devices`: the Android devices on this desk, and what each can measure.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from sme2_assets.cli.support import json_option, out, print_json, say, tell
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.targets.android.inventory import DeviceReport


@click.command()
@click.option("--restore", is_flag=True, help="Restore power settings left behind by a session that died.")
@click.option("--clean", is_flag=True, help="Remove everything that sme2 has put on the devices.")
@click.option("--device", "serial", help="Only the device with this serial number.")
@json_option
@click.pass_obj
def devices(store: Store, restore: bool, clean: bool, serial: str | None, as_json: bool) -> None:
    """The connected Android devices: state, facts, health, what each can measure, what to do."""
    from sme2_assets.errors import TargetUnavailable
    from sme2_assets.targets.android.adb import require_adb
    from sme2_assets.targets.android.inventory import device_reports

    adb = require_adb()
    if serial is not None and adb.listed(serial) is None:
        raise TargetUnavailable(f"adb knows no device {serial!r}.", "See `sme2 devices` for those it knows.")
    if restore or clean:
        _tidy(
            store,
            [listed.serial for listed in adb.devices() if serial in (None, listed.serial)],
            restore,
            clean,
        )
        return
    reports = [report for report in device_reports(store, adb) if serial in (None, report.serial)]
    if as_json:
        print_json([report.as_json() for report in reports])
    elif not reports:
        tell("No Android device is connected: connect one by USB with USB debugging on, or by `adb connect`.")
    else:
        for report in reports:
            _print(report)


def _tidy(store: Store, serials: list[str], restore: bool, clean: bool) -> None:
    from sme2_assets.targets.android.target import one_device, power_journal
    from sme2_assets.targets.lease import lease

    for serial in serials:
        target = one_device(store.tools, serial)
        with lease(store.leases, target.device, log=tell, patience_s=10):
            if restore:
                waiting = power_journal(store.leases, target.device).is_file()
                target.begin(store.leases, tell)
                tell(f"{serial}: " + ("power settings are restored" if waiting else "nothing to restore"))
            if clean:
                tell(f"{serial}: {target.clean() / 1e6:.1f} MB removed")


def _print(report: DeviceReport) -> None:
    """A block of lines for one device: as many facts as there are do not fit into columns."""
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(report):
        table.add_row(name, text)
    say(report.serial, "bold")
    out.print(table, markup=False, highlight=False)
    out.print()


def _lines(report: DeviceReport) -> list[tuple[str, str]]:
    lines = [("state", f"{report.state}, by {report.transport}, {report.device}")]
    if report.in_use:
        lines.append(("in use", "a session is measuring on it"))
    if report.problem:
        lines += [("problem", report.problem), ("what to do", report.remedy or "")]
    if report.facts is not None:
        lines += _fact_lines(report)
    for sme2, answer in report.measures.items():
        lines.append(
            (f"android-sme2_{sme2}", "yes" if answer.ok else f"no: {answer.detail} {answer.remedy or ''}")
        )
    if report.facts is not None:
        lines.append(("health", "; ".join(report.health) or "nothing in the way of a measurement"))
    if report.restore_waits:
        lines.append(("power", "settings of a session that died are waiting: run `sme2 devices --restore`"))
    return lines


def _fact_lines(report: DeviceReport) -> list[tuple[str, str]]:
    from sme2_assets.targets.clusters import described

    facts = report.facts
    assert facts is not None
    sme = f"SME vectors of {facts.sme_vector_bits} bits" if facts.sme_vector_bits else None
    battery = facts.battery or {}
    level, plugged = battery.get("level_percent"), battery.get("plugged")
    memory = f"{facts.memory_bytes / 2**30:.1f} GiB" if facts.memory_bytes else None
    space = [
        *([f"{report.free_bytes / 1e9:.1f} GB free"] if report.free_bytes is not None else []),
        *([f"{report.stored_bytes / 1e6:.1f} MB stored by sme2"] if report.stored_bytes is not None else []),
    ]
    rows: dict[str, list[str | None]] = {
        "model": [facts.model, facts.soc],
        "system": [facts.os, facts.build, f"kernel {facts.kernel}"],
        "CPU": [facts.cpu, f"{facts.cores} cores", described(facts.clusters), sme, facts.emulator],
        "memory": [memory],
        "battery": [f"{level} %" if level is not None else None, f"plugged: {plugged}" if plugged else None],
        "storage": [*space],
    }
    texts = {name: ", ".join(part for part in parts if part) for name, parts in rows.items()}
    return [(name, text) for name, text in texts.items() if text]
