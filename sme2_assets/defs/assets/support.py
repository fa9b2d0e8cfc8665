"""What all assets share: clear failures, and facts that travel along the edges of the graph."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import dagster as dg

from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.store import sha256_of_text
from sme2_assets.targets.host import host_device
from sme2_assets.targets.lease import beside_sessions


@contextmanager
def clear_failures() -> Iterator[None]:
    """Turns an error meant for people into a failed step that says what to do, then what happened."""
    try:
        yield
    except Sme2Error as error:
        metadata: dict[str, dg.MetadataValue] = {}
        if error.remedy:
            metadata["what to do"] = dg.MetadataValue.text(error.remedy)
        metadata["what happened"] = dg.MetadataValue.text(error.what)
        # The UI shows the beginning of this in lists and graphs.
        remedy = f"What to do: {error.remedy}\n" if error.remedy else ""
        description = f"{remedy}What happened: {error.what}"
        raise dg.Failure(description=description, metadata=metadata, allow_retries=False) from error


def making(lab: Lab, log: Callable[[str], None]) -> AbstractContextManager[None]:
    """For a build or an export: whoever measures sees that the machine is busy, and need not wait for it."""
    return beside_sessions(lab.store.leases, host_device(), log)


def plotted(value: float) -> dg.MetadataValue:
    """A number on its own: the UI plots it over the materialisations. Six digits are enough for a person."""
    return dg.MetadataValue.float(float(f"{float(value):.6g}"))


def content_version(parts: Iterable[str]) -> dg.DataVersion:
    """The data version of what these hashes or ids identify."""
    return dg.DataVersion(sha256_of_text(*parts)[:16])


def device_to_measure_on(context: dg.AssetExecutionContext) -> str | None:
    """The one that what is measured in the same run asks for: it may have another CPU than this machine."""
    steps: Any = context.run.run_config.get("ops", {})
    configs = (step.get("config", {}) for step in steps.values())
    return next((device for config in configs if (device := config.get("device"))), None)


class InRun(Protocol):
    """What the contexts of assets and of ops have in common."""

    @property
    def instance(self) -> dg.DagsterInstance: ...

    @property
    def run(self) -> dg.DagsterRun: ...


def materialised(context: InRun, asset: str, key: str, name: str) -> str:
    """A fact that an upstream asset attached to a partition: by this Dagster run, else the last time.

    So run ids travel along the edges of the graph; nothing downstream looks for the newest one.
    """
    own = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    last = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[key]), limit=1
    ).records
    for made in (
        *(entry.asset_materialization for entry in reversed(own)),
        *(record.asset_materialization for record in last),
    ):
        if made and made.asset_key == dg.AssetKey(asset) and made.partition == key and name in made.metadata:
            return str(made.metadata[name].value)
    raise Sme2Error(
        f"{asset} has not been materialised for {key}.",
        f"Materialise {asset} for this partition first, or run `sme2 profile`, which does all steps.",
    )


def runs_of(context: InRun, asset: str, keys: Iterable[str]) -> dict[str, str]:
    """The run id that an upstream asset recorded for each partition."""
    return {key: materialised(context, asset, key, "run_id") for key in keys}
