"""What all assets share: clear failures, how the runs of partitions are read, how a view is shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import dagster as dg

from sme2_assets.errors import Sme2Error
from sme2_assets.partitions import parse_run_key
from sme2_assets.profiling.session import current_run_dir
from sme2_assets.resources import Lab
from sme2_assets.targets.host import host_device
from sme2_assets.targets.lease import lease

Rows = TypeVar("Rows")


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


def read_all_runs(
    context: dg.AssetExecutionContext, lab: Lab, read: Callable[[Path], Rows]
) -> dict[str, Rows]:
    """What `read` gives for the run folder of each partition.

    All are read before the caller writes any: a broken file of one arm leaves no half pair.
    """
    rows = {}
    for key in context.partition_keys:
        variant, target = parse_run_key(key)
        rows[key] = read(current_run_dir(lab.store, variant, target.platform, target.sme2))
    return rows
