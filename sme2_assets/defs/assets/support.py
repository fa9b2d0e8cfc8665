"""What all assets share: clear failures, and how the runs of partitions get into the warehouse."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import dagster as dg

from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.heartbeat import heartbeat
from sme2_assets.store import sha256_of_text
from sme2_assets.targets.host import host_device
from sme2_assets.targets.lease import beside_sessions
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import runs_in_tables
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.shared import give

DATA_VERSION_TAG = "dagster/data_version"


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


def tell_made(
    context: dg.AssetExecutionContext,
    asset: str,
    key: str,
    version: str,
    metadata: Callable[[], dict[str, Any]],
) -> None:
    """Records an upstream asset that a step made sure of, unless Dagster knows this version of it."""
    known = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=[key]), limit=1
    ).records
    made = known[0].asset_materialization if known else None
    if made is None or (made.tags or {}).get(DATA_VERSION_TAG) != version:
        context.log_event(
            dg.AssetMaterialization(
                asset, partition=key, metadata=metadata(), tags={DATA_VERSION_TAG: version}
            )
        )


def take_in(
    context: dg.AssetExecutionContext,
    lab: Lab,
    metadata: Callable[[Warehouse, str], dict[str, Any]],
    *,
    again: bool,
) -> dg.MaterializeResult:
    """Adds the sessions of the partitions to the warehouse, then shows what it has on each run.

    A session is added as a whole, both arms with all their tables, whichever partition is asked for. What is
    there already is made `again`, or left as it is.
    """
    warehouse = lab.warehouse
    with clear_failures(), heartbeat(context.log.info, "making rows of what was measured"):
        # Not part of measuring: a store that does not answer must not cost a measurement.
        give(lab.store, context.log.info)
        run_ids = runs_of(context, "etdump_traces", context.partition_keys)
        if again or not set(run_ids.values()) <= runs_in_tables(warehouse):
            taken: set[str] = set()
            for run_id in run_ids.values():
                if run_id not in taken:
                    taken.update(take_session(lab.store, warehouse, lab.store.run_dir(run_id)))
            warehouse.publish()
        for key, run_id in run_ids.items():
            context.add_asset_metadata(metadata(warehouse, run_id), partition_key=key)
    return dg.MaterializeResult(data_version=dg.DataVersion(sha256_of_text(*run_ids.values())[:16]))
