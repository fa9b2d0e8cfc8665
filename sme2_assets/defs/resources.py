"""What assets are given: the data folder and what lives in it."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from sme2_assets.store import Store, default_data_root
from sme2_assets.targets import Target, open_target
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
