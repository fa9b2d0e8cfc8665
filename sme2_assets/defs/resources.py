"""What assets, schedules and sensors are given: the data folder with its contents, and the nights."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field

from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.models.registry import is_large, parse_variant, variants
from sme2_assets.profiling.requests import Requests, requests_for_this_machine, requests_on_devices
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets import SME2_STATES, Target, availabilities, open_target
from sme2_assets.warehouse import Warehouse


class Lab(dg.ConfigurableResource):
    """Where measurements are made and kept: the data folder, its warehouse, the targets."""

    data_root: str = ""

    @property
    def store(self) -> Store:
        return Store(Path(self.data_root).resolve() if self.data_root else default_data_root())

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.store.warehouse)

    def target(self, platform: str, device: str | None = None) -> Target:
        return open_target(platform, self.store, device)

    def require(self, platform: str, states: Iterable[str], device: str | None = None) -> Target:
        """A target that offers all these states here. Else an error, which also says what is offered here.

        Dagster offers the partitions of every platform: definitions may not depend on where they are loaded.
        """
        target = self.target(platform, device)
        try:
            for sme2 in states:
                target.require(sme2)
        except TargetUnavailable as error:
            here = [str(key) for key, _, it in availabilities(self.store) if it.ok]
            offered = f"Available here: {', '.join(here) or 'nothing'}." if device is None else ""
            raise TargetUnavailable(error.what, f"{error.remedy or ''} {offered}".strip() or None) from error
        return target


class Nights(dg.ConfigurableResource):
    """When nights are, and what they measure. By default everything this machine offers, at 02:00 UTC."""

    cron: str = "0 2 * * *"
    # For the cron fields and a night's date.
    time_zone: str = "UTC"
    # Whether the schedule is on before anyone switches it on in the UI.
    on: bool = False
    # Empty: all that are registered, except large ones.
    variants: list[str] = Field(default_factory=list)
    # Empty: all that this machine offers.
    platforms: list[str] = Field(default_factory=list)
    # Names and `label:...` from the inventory: each of these devices, besides the platforms that are named.
    devices: list[str] = Field(default_factory=list)
    # What `etdump_traces` takes as configuration.
    settings: dict[str, Any] = Field(default_factory=dict)
    # Sessions with a hidden slow-down after the noise of the machine (docs/measuring.md).
    blind_trials: int = 0

    def requests(self, lab: Lab) -> Requests:
        """The pairs of a night, and what is left out. An error if nothing can be measured."""
        chosen = [parse_variant(name).key for name in self.variants] or [
            it.key for it in variants() if not is_large(it.key)
        ]
        if not self.devices:
            return requests_for_this_machine(lab.store, chosen, SME2_STATES, self.platforms)
        wanted = requests_on_devices(lab.store, chosen, SME2_STATES, self.devices)
        if self.platforms:
            here = requests_for_this_machine(lab.store, chosen, SME2_STATES, self.platforms)
            wanted = Requests(
                wanted.requests + here.requests, wanted.notes + here.notes, wanted.left_out + here.left_out
            )
        if not wanted.requests:
            raise Sme2Error(
                "None of the devices can be measured. " + " ".join(map(str, wanted.left_out)),
                "Run `sme2 devices`.",
            )
        return wanted

    def ticks(self, since: datetime, until: datetime) -> list[datetime]:
        """When nights were due in between, without the last of them, which is not over."""
        windows = dg.TimeWindowPartitionsDefinition(
            start=since.astimezone(ZoneInfo(self.time_zone)),
            fmt="%Y-%m-%dT%H:%M%z",
            cron_schedule=self.cron,
            timezone=self.time_zone,
        )
        return [datetime.fromisoformat(key) for key in windows.get_partition_keys(current_time=until)]

    def freshness(self) -> dg.FreshnessPolicy:
        """For what every night makes: overdue some hours after the longest pause between two nights."""
        since = datetime(2026, 1, 1, tzinfo=UTC)
        ticks = self.ticks(since, since + timedelta(weeks=9))
        pause = max((later - earlier for earlier, later in pairwise(ticks)), default=timedelta(weeks=9))
        return dg.FreshnessPolicy.time_window(
            warn_window=pause + timedelta(hours=4), fail_window=pause + timedelta(hours=12)
        )
