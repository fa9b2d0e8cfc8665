"""`sme2 devices`: the devices on this desk and elsewhere, and what each can measure.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from sme2_assets.cli.support import json_option, out, print_json, say, tell
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.targets.devices import DeviceReport
    from sme2_assets.targets.remote.target import RemoteTarget


@click.command()
@click.option("--restore", is_flag=True, help="Restore power settings left behind by a session that died.")
@click.option("--clean", is_flag=True, help="Remove everything that sme2 has put on the devices.")
@click.option(
    "--device", help="Only these: a name or label:LABEL from the inventory, a serial, or ssh://user@host."
)
@json_option
@click.pass_obj
def devices(store: Store, restore: bool, clean: bool, device: str | None, as_json: bool) -> None:
    """Show all devices, listed and connected: state, facts, health, what each can measure, what to do."""
    from sme2_assets.targets.devices import known_devices, report_all

    known = known_devices(store, device, tell)
    if restore or clean:
        if not _tidy(store, [it.target for it in known], restore, clean):
            sys.exit(1)
        return
    reports = report_all(store, known)
    if as_json:
        print_json([report.as_json() for report in reports])
    elif not reports:
        tell(
            "No device is known: connect a phone by USB with USB debugging on, name a machine (--device "
            "ssh://user@host), or write an inventory (docs/devices.md)."
        )
    else:
        for report in reports:
            _print(report)


def _tidy(store: Store, targets: Sequence[RemoteTarget], restore: bool, clean: bool) -> bool:
    """Restores or cleans each device that is within reach; whether all were."""
    from sme2_assets.targets.android.target import power_journal
    from sme2_assets.targets.lease import lease

    everywhere = True
    for target in targets:
        try:
            with lease(store.leases, target.device, log=tell, patience_s=10):
                if restore:
                    waiting = power_journal(store.leases, target.device).is_file()
                    target.begin(store.leases, tell)
                    tell(
                        f"{target.address}: "
                        + ("power settings are restored" if waiting else "nothing to restore")
                    )
                if clean:
                    tell(f"{target.address}: {target.clean() / 1e6:.1f} MB removed")
        except Sme2Error as error:
            everywhere = False
            tell(f"{target.address}: {error}", "bold red")
    return everywhere


def _print(report: DeviceReport) -> None:
    """A block of lines for one device: there are too many facts for columns."""
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(report):
        table.add_row(name, text)
    say(f"{report.name} ({report.address})" if report.name else report.address, "bold")
    out.print(table, highlight=False)
    out.print()


def _lines(report: DeviceReport) -> list[tuple[str, str]]:
    lines = [("state", f"{report.state}, by {report.transport}, {report.device}")]
    if report.labels:
        lines.append(("labels", ", ".join(report.labels)))
    if report.in_use:
        by = f" ({report.holder})" if report.holder else ""
        lines.append(("in use", f"a session is measuring on it{by}"))
    if report.problem:
        lines += [("problem", report.problem), ("what to do", report.remedy or "")]
    if report.facts is not None:
        lines += _fact_lines(report)
    for sme2, answer in report.measures.items():
        lines.append(
            (
                f"{report.platform}-sme2_{sme2}",
                "yes" if answer.ok else f"no: {answer.detail} {answer.remedy or ''}",
            )
        )
    if report.facts is not None:
        lines.append(("health", "; ".join(report.health) or "nothing in the way of a measurement"))
    if report.restore_waits:
        lines.append(("power", "settings left by a session that died: run `sme2 devices --restore`"))
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
