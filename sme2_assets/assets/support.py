"""What all assets share: clear failures, and how the runs of partitions come into the warehouse."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg

from sme2_assets.errors import Sme2Error
from sme2_assets.partitions import parse_run_key
from sme2_assets.profiling.session import current_run_dir
from sme2_assets.resources import Lab
from sme2_assets.store import sha256_of_text
from sme2_assets.targets.host import host_device
from sme2_assets.targets.lease import lease
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import KernelRows, RunRows

Rows = TypeVar("Rows", RunRows, KernelRows)


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


@contextmanager
def host_cpu(lab: Lab, log: Callable[[str], None]) -> Iterator[None]:
    """Keeps this host's CPU for work that would disturb a measurement on it.

    The pool alone does not: it may have several slots, so that several devices are measured at once.
    """
    with lease(lab.store.leases, host_device(), log=log):
        yield


def plotted(value: float) -> dg.MetadataValue:
    """A number on its own: the UI plots it over the materialisations. Six digits are enough for a person."""
    return dg.MetadataValue.float(float(f"{float(value):.6g}"))


def store_runs(
    context: dg.AssetExecutionContext,
    lab: Lab,
    read: Callable[[Path], Rows],
    write: Callable[[Warehouse, Rows], None],
    metadata: Callable[[Warehouse, Rows], dict[str, Any]],
) -> dg.MaterializeResult:
    """Brings the run folder of each partition into the warehouse, and shows what is there of it then.

    All are read before any is written: a broken file of one arm leaves no half pair.
    """
    warehouse = lab.warehouse
    with clear_failures():
        runs = {}
        for key in context.partition_keys:
            variant, target = parse_run_key(key)
            runs[key] = read(current_run_dir(lab.store, variant, target.platform, target.sme2))
        for rows in runs.values():
            write(warehouse, rows)
        warehouse.publish()
        for key, rows in runs.items():
            context.add_asset_metadata(metadata(warehouse, rows), partition_key=key)
    run_ids = [rows.manifest.run_id for rows in runs.values()]
    return dg.MaterializeResult(data_version=dg.DataVersion(sha256_of_text(*run_ids)[:16]))
