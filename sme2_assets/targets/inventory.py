"""The devices of a lab in one file: what each is called, how it is reached, which labels it has.

Belongs here: the file, and the target that a name, a label or `any` refers to. Does not: how a device is
chosen from a pool (pool), how it is shown (devices).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sme2_assets.errors import Sme2Error, TargetUnavailable, did_you_mean
from sme2_assets.store import Store
from sme2_assets.targets.android.adb import require_adb
from sme2_assets.targets.android.device import choose_device, device_names
from sme2_assets.targets.android.target import one_device
from sme2_assets.targets.base import Target
from sme2_assets.targets.pool import ANY, DevicePool
from sme2_assets.targets.remote.target import RemoteTarget
from sme2_assets.targets.shapes import SCHEME as EMULATED
from sme2_assets.targets.ssh.address import SCHEME, parse_address, without_addresses
from sme2_assets.targets.ssh.target import SshTarget
from sme2_assets.written.documents import Kind, read_document
from sme2_assets.written.problems import Problem, WrittenError, line_of, problems_of

FILE = "devices.yaml"
VARIABLE = "SME2_INVENTORY"
# The name of the worker that this process belongs to.
WORKER_VARIABLE = "SME2_WORKER"
LABEL = "label:"
_PAGE = "docs/devices.md"
KIND = Kind(
    "an inventory of devices",
    f"Correct the file; {_PAGE} says what may be in it.",
    f"Write your devices into it, or delete it; {_PAGE} says how.",
)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _word(text: str) -> str:
    if not _WORD.fullmatch(text) or text == ANY:
        raise ValueError(
            f"{text!r} cannot be a name: use letters, digits, '.', '_' and '-', and not {ANY!r}."
        )
    return text


def _address(text: str) -> str:
    try:
        return str(parse_address(text))
    except Sme2Error as error:
        raise ValueError(f"{error.what} {error.remedy}") from None


def _server(text: str) -> str:
    address = re.fullmatch(r"tcp:[^\s:/-][^\s:/]*:([0-9]{1,5})", text)
    if address is None or not 1 <= int(address[1]) <= 65535:
        raise ValueError(f"{text!r} is not the address of an adb server: write tcp:host:port.")
    return text


Word = Annotated[str, AfterValidator(_word)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Entry(_Strict):
    """One device: a machine over SSH, or an Android device by its serial number."""

    ssh: Annotated[str, AfterValidator(_address)] | None = None
    adb: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    # Its adb server, if not the default one.
    server: Annotated[str, AfterValidator(_server)] | None = None
    labels: list[Word] = []
    # In a deployment: the only worker that measures on it, and whether it has SME2, which only that worker
    # can ask it.
    worker: Word | None = None
    has_sme2: bool = True

    @model_validator(mode="after")
    def _one_way_there(self) -> Entry:
        if (self.ssh is None) == (self.adb is None):
            raise ValueError("give either ssh (an address) or adb (a serial number).")
        if self.server is not None and self.adb is None:
            raise ValueError("server is for adb.")
        return self

    @property
    def platform(self) -> str:
        return "linux" if self.ssh is not None else "android"

    @property
    def address(self) -> str:
        return self.ssh or self.adb or ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another worker has to measure on it: a single owner keeps sessions apart."""
        return self.worker not in (None, os.environ.get(WORKER_VARIABLE))

    def target(self, tools: Path) -> RemoteTarget:
        return SshTarget(self.ssh) if self.ssh is not None else one_device(tools, self.address, self.server)


class Inventory(_Strict):
    """All devices by name, in the order of the file."""

    devices: dict[Word, Entry] = {}

    def chosen(self, choice: str, platform: str | None = None) -> dict[str, Entry]:
        """The devices that a name, `label:...` or `any` matches; an error if there are none."""
        label = choice.removeprefix(LABEL) if choice.startswith(LABEL) else None
        found = {
            name: entry
            for name, entry in self.devices.items()
            if choice in (ANY, name) or label in entry.labels
            if platform in (None, entry.platform)
        }
        if found:
            return found
        on = f" on {platform}" if platform else ""
        if label is not None:
            known = sorted({each for entry in self.devices.values() for each in entry.labels})
            raise TargetUnavailable(
                f"No device of the inventory{on} has the label {label!r}{did_you_mean(label, known)}.",
                f"The labels are {', '.join(known) or '(none)'}; `sme2 devices` shows all devices.",
            )
        what = "no device" if choice == ANY else f"no device {choice!r}"
        raise TargetUnavailable(
            f"The inventory has {what}{on}{did_you_mean(choice, list(self.devices))}.",
            f"Add it to {FILE} in the data folder; {_PAGE} says how.",
        )


def inventory_file(store: Store) -> Path:
    """$SME2_INVENTORY, otherwise `devices.yaml` in the data folder."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else store.root / FILE


def read_inventory(store: Store) -> Inventory:
    """The inventory; empty if there is no file. One error lists all that is wrong with it, and where."""
    path = inventory_file(store)
    if not path.exists() and not os.environ.get(VARIABLE):
        return Inventory()
    document = read_document(path, KIND)
    named = document.data.get("devices")
    entries = named if isinstance(named, dict) else {}
    inventory, problems = Inventory(), list[Problem]()
    try:
        inventory = Inventory.model_validate(document.data)
    except ValidationError as error:
        # Names of devices are keys too, with the keys of a device below them.
        problems = problems_of(error, {**dict.fromkeys(entries, Entry), "": Inventory}, document.lines)
    problems += [
        Problem(
            ("devices", name),
            f"is the same device as {other}.",
            None,
            line_of(("devices", name), document.lines),
        )
        for name, other in _named_twice(entries).items()
    ]
    if problems:
        raise WrittenError(path.name, problems, _PAGE)
    return inventory


def with_names_alone(store: Store, text: str) -> str:
    """A text in which machines have their names in the inventory, and addresses are hidden."""
    try:
        devices = read_inventory(store).devices
    except Sme2Error:
        devices = {}
    return without_addresses(
        text, {parse_address(entry.ssh): name for name, entry in devices.items() if entry.ssh is not None}
    )


def _named_twice(entries: Mapping[str, Any]) -> dict[str, str]:
    """Names that repeat a device, with its first name: the queue would treat them as two devices."""
    first: dict[tuple[str, str | None], str] = {}
    ways = {name: _way_to(entry) for name, entry in entries.items()}
    return {
        name: other
        for name, way in ways.items()
        if way is not None and (other := first.setdefault(way, name)) != name
    }


def _way_to(entry: Any) -> tuple[str, str | None] | None:
    """Address and server of a device, whatever else is wrong with its entry; None if these are wrong."""
    try:
        way = Entry.model_validate({key: entry[key] for key in ("ssh", "adb", "server") if key in entry})
    except (ValidationError, TypeError):
        return None
    return way.address, way.server


def open_device(platform: str, store: Store, device: str | None) -> Target:
    """The target that `device` refers to on a platform: a name or label of the inventory, `any`, an address.

    Without one, it is the only connected Android device.
    """
    if device is None:
        return DevicePool(
            platform, lambda: [one_device(store.tools, choose_device(require_adb(), None).serial)]
        )
    inventory = read_inventory(store)
    if device == ANY or device.startswith(LABEL):
        return DevicePool(platform, lambda: _candidates(inventory, platform, store, device))
    if device in inventory.devices:
        [entry] = inventory.chosen(device, platform).values()
        if entry.is_elsewhere:
            raise TargetUnavailable(
                f"{device} is measured by the worker {entry.worker}, and this is not that worker.",
                f"Give the run the tag dagster-celery/queue: {entry.worker}; on that machine, with its data "
                f"folder, set {WORKER_VARIABLE}={entry.worker}.",
            )
        return entry.target(store.tools)
    if platform == "android":
        return one_device(store.tools, device)
    if platform == "linux" and device.startswith(SCHEME):
        return SshTarget(device)
    raise Sme2Error(
        f"{device!r} is not a device of platform {platform}{did_you_mean(device, list(inventory.devices))}.",
        "Name another Linux machine by its address, ssh://user@host, or as the inventory calls it; leave it "
        "out for this machine.",
    )


def platform_of(store: Store, device: str) -> str:
    """The platform of a device, by its name; for a label or `any`, that of all these devices."""
    if device.startswith(SCHEME):
        return "linux"
    if f"{device}:".startswith(EMULATED):
        return "emulated"
    inventory = read_inventory(store)
    several = device.startswith(LABEL) or (device == ANY and inventory.devices)
    if device not in inventory.devices and not several:
        # A serial number may be anything; one that looks like a name of the inventory is a slip.
        if similar := did_you_mean(device, list(inventory.devices)):
            raise TargetUnavailable(
                f"The inventory has no device {device!r}{similar}.",
                "`sme2 devices` shows all devices. If it is a serial number, add --platform android.",
            )
        return "android"
    platforms = sorted({entry.platform for entry in inventory.chosen(device).values()})
    if len(platforms) > 1:
        what = "The inventory" if device == ANY else device
        raise Sme2Error(f"{what} has devices of {' and '.join(platforms)}.", "Choose one with --platform.")
    return platforms[0]


def _candidates(inventory: Inventory, platform: str, store: Store, choice: str) -> list[RemoteTarget]:
    """The available devices of a pool: those of the inventory, and for `any` also others that adb lists."""
    if platform != "android" or choice != ANY:
        chosen = inventory.chosen(choice, platform)
        here = [entry.target(store.tools) for entry in chosen.values() if not entry.is_elsewhere]
        if not here:
            raise TargetUnavailable(
                f"{', '.join(chosen)} are measured by other workers.",
                "Give the run the tag dagster-celery/queue with the name of a worker.",
            )
        return here
    elsewhere = [
        entry
        for entry in inventory.devices.values()
        if entry.platform == platform and entry.server is not None and not entry.is_elsewhere
    ]
    listed = require_adb().devices()
    usable = [device.serial for device in listed if device.usable]
    if not usable and not elsewhere:
        if not listed:
            choose_device(require_adb(), None)
        raise TargetUnavailable(
            f"No connected Android device can be used: {device_names(listed)}.",
            "; ".join(f"{device.serial}: {device.remedy}" for device in listed),
        )
    listed_here: list[RemoteTarget] = [one_device(store.tools, serial) for serial in usable]
    return listed_here + [entry.target(store.tools) for entry in elsewhere]
