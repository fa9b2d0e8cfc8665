"""Power modes of Android devices: named settings, applied for a session and undone after it.

Belongs here: which settings a mode consists of, setting and verifying them, restoring the previous values.
Does not: what they do to a measurement; no setting here lifts a frequency cap or stops a device from slowing
itself.

The previous values are written to a journal on this host before anything is changed. The journal is deleted
once all of them are restored. So a process that dies, or a device that goes away, leaves a journal; the next
session on the device restores what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error
from sme2_assets.store import write_json
from sme2_assets.targets.android.device import Device
from sme2_assets.targets.remote.connection import Script, shell_program

Log = Callable[[str], None]

JOURNAL_SCHEMA = 1
_PATIENCE_S = 60.0
#: The exit code of the programs if the device has no such command: it is not Android.
_NO_COMMAND = 44
_GET = shell_program("settings_get")
_PUT = shell_program("settings_put")
_WAKE = shell_program("wake")

_ANIMATIONS = ("window_animation_scale", "transition_animation_scale", "animator_duration_scale")


@dataclass(frozen=True)
class Mode:
    """Settings of Android's `global` table; `wake` switches the screen on, as a person would by hand."""

    settings: Mapping[str, str]
    wake: bool


MODES = {
    # 15: awake on mains, USB, wireless and dock.
    "boost": Mode(
        {"low_power": "0", "stay_on_while_plugged_in": "15", **dict.fromkeys(_ANIMATIONS, "0")}, wake=True
    ),
    # 1: awake on mains.
    "app": Mode(
        {"low_power": "0", "stay_on_while_plugged_in": "1", **dict.fromkeys(_ANIMATIONS, "1")}, wake=False
    ),
}


@dataclass(frozen=True)
class Setting:
    """One setting: the value before, the one wanted, and what the device reported afterwards.

    None is a setting that does not exist, in which case Android uses its default. `after` is valid once the
    device was `asked`.
    """

    name: str
    before: str | None
    wanted: str
    after: str | None = None
    asked: bool = False

    @property
    def accepted(self) -> bool:
        return self.asked and _same(self.after, self.wanted)


def mode_named(name: str) -> Mode:
    if name not in MODES:
        raise Sme2Error(
            f"There is no power mode {name!r}.",
            f"Choose {' or '.join(sorted(MODES))}, or leave it empty to change nothing.",
        )
    return MODES[name]


@contextmanager
def applied(device: Device, mode: str, journal: Path, log: Log) -> Iterator[dict[str, Any]]:
    """Puts the device into a mode for the block; yields what was set and what took effect.

    A setting that the device refuses is logged and recorded, and the block runs anyway.
    """
    chosen = mode_named(mode)
    # Otherwise the settings of a dead session would be taken for the owner's.
    restore_from(journal, device, log)
    before = _read(device, chosen.settings)
    settings = [Setting(name, before[name], wanted) for name, wanted in chosen.settings.items()]
    _write_journal(journal, device, mode, settings)
    facts: dict[str, Any] = {"mode": mode}
    try:
        facts["woken"] = _wake(device, log) if chosen.wake else None
        _put(device, {setting.name: setting.wanted for setting in settings})
        after = _read(device, chosen.settings)
        settings = [replace(setting, after=after[setting.name], asked=True) for setting in settings]
        _write_journal(journal, device, mode, settings)
        facts["settings"] = [_fact(setting) for setting in settings]
        facts["taken"] = all(setting.accepted for setting in settings)
        for setting in settings:
            if not setting.accepted:
                log(
                    f"{device.device_id}: {setting.name} did not take: asked for {setting.wanted}, "
                    f"the device says {_shown(setting.after)}"
                )
        yield facts
    finally:
        facts["restored"] = _try_restore(journal, device, log)


def restore_from(journal: Path, device: Device, log: Log = lambda message: None) -> bool:
    """Restores what a journal recorded; False without one. If the connection is lost, the journal stays."""
    held = _read_journal(journal, device)
    if held is None:
        return False
    current = _read(device, [setting.name for setting in held])
    back: dict[str, str | None] = {}
    for setting in held:
        now = current[setting.name]
        if setting.asked and not _same(now, setting.after):
            log(
                f"{device.device_id}: {setting.name} was changed by somebody else in the meantime "
                f"(to {_shown(now)}) and is left alone"
            )
        elif not _same(now, setting.before):
            back[setting.name] = setting.before
    _put(device, back)
    afterwards = _read(device, back)
    if stuck := [name for name, value in back.items() if not _same(afterwards[name], value)]:
        names = ", ".join(f"{name} ({_shown(afterwards[name])}, was {_shown(back[name])})" for name in stuck)
        raise RunnerError(
            f"{device.device_id} did not accept its old settings: {names}.",
            f"Set it by hand with `settings put global`, then delete {journal}.",
        )
    journal.unlink(missing_ok=True)
    if back:
        log(f"{device.device_id}: {len(back)} power settings were restored")
    return True


def _try_restore(journal: Path, device: Device, log: Log) -> bool:
    """The measurement counts, whether or not the settings could be restored."""
    try:
        return restore_from(journal, device, log)
    except Sme2Error as error:
        when = "is connected" if isinstance(error, ConnectionLost) else "is used"
        log(
            f"{device.device_id}: the power settings were not restored ({error.what}) "
            f"They will be when the device {when} next, or by `sme2 devices --restore`."
        )
        return False


def _read(device: Device, names: Iterable[str]) -> dict[str, str | None]:
    """The values of settings; None for one that does not exist."""
    wanted = list(names)
    if not wanted:
        return {}
    done = device.shell(Script(_GET, tuple(wanted)), timeout_s=_PATIENCE_S)
    if done.returncode == _NO_COMMAND:
        raise Sme2Error(
            f"{device.device_id} has no `settings` command, so it is not Android and has no power modes.",
            "Leave `power` empty.",
        )
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    if done.returncode != 0 or not found.keys() >= set(wanted):
        raise RunnerError(
            f"{device.device_id} did not return its settings: {done.stderr.strip()[-200:] or 'no answer'}",
            "Unlock the device once after it has started, or leave `power` empty.",
        )
    return {name: None if found[name].strip() in ("null", "") else found[name].strip() for name in wanted}


def _put(device: Device, values: Mapping[str, str | None]) -> None:
    words = [
        word
        for name, value in values.items()
        for word in (name, "delete" if value is None else "put", value or "")
    ]
    if words:
        device.shell(Script(_PUT, tuple(words)), timeout_s=_PATIENCE_S)


def _wake(device: Device, log: Log) -> bool:
    done = device.shell(Script(_WAKE), timeout_s=_PATIENCE_S)
    if done.returncode != 0:
        why = "there is no `svc` command" if done.returncode == _NO_COMMAND else done.stderr.strip()[-200:]
        log(f"{device.device_id}: the screen could not be switched on: {why or 'no reason given'}")
    return done.returncode == 0


def _write_journal(journal: Path, device: Device, mode: str, settings: Iterable[Setting]) -> None:
    write_json(
        journal,
        {
            "schema": JOURNAL_SCHEMA,
            "device": device.device_id,
            "mode": mode,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": [asdict(setting) for setting in settings],
        },
    )


def _read_journal(journal: Path, device: Device) -> list[Setting] | None:
    try:
        document = json.loads(journal.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(journal) from error
    try:
        if document["schema"] != JOURNAL_SCHEMA:
            raise _unreadable(journal)
        settings = [Setting(**setting) for setting in document["settings"]]
        owner = document["device"]
    except (KeyError, TypeError) as error:
        raise _unreadable(journal) from error
    if owner != device.device_id:
        raise Sme2Error(
            f"{journal} holds the settings of {owner}, not of {device.device_id}.",
            f"Connect {owner} and run `sme2 devices --restore`.",
        )
    return settings


def _unreadable(journal: Path) -> Sme2Error:
    return Sme2Error(
        f"{journal} should contain power settings to restore, but cannot be read.",
        "Check the developer and battery settings of the device by hand, then delete the file.",
    )


def _fact(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "before": setting.before,
        "wanted": setting.wanted,
        "after": setting.after,
        "taken": setting.accepted,
    }


def _same(one: str | None, other: str | None) -> bool:
    """Whether two values mean the same: Android writes both 1 and 1.0."""
    if one is None or other is None:
        return one is other
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def _shown(value: str | None) -> str:
    return "nothing" if value is None else value
