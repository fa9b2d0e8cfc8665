"""`sme2 validate`: what kind of thing a run id, a file or a folder is, and which check is for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sme2_assets.diagnostics.evidence_checks import AGAIN
from sme2_assets.diagnostics.files import (
    validate_experiment,
    validate_perfetto,
    validate_program,
    validate_trace,
)
from sme2_assets.diagnostics.folders import validate_export, validate_kit_folder, validate_output
from sme2_assets.diagnostics.runs import run_in_warehouse, validate_foreign_run, validate_run
from sme2_assets.diagnostics.steps import Checkup
from sme2_assets.errors import Sme2Error, printable
from sme2_assets.evidence.foreign import FOREIGN_FILE
from sme2_assets.evidence.manifest import MANIFEST_FILE
from sme2_assets.exchange.export import LISTING_FILE
from sme2_assets.exchange.kit import KIT_MANIFEST, KIT_METRICS
from sme2_assets.exchange.outputs import SUMMARY_FILE
from sme2_assets.exchange.perfetto import SUFFIX
from sme2_assets.store import Store

_EXPERIMENT_SUFFIXES = (".yaml", ".yml", ".json")


def validate(what: str, store: Store) -> Checkup:
    """Looks at a run by its id, or at a file or folder by its path. A path wins if both exist."""
    path = Path(what)
    # Without a name it would be the working directory.
    if what and path.is_dir():
        return _validate_folder(path, store)
    if path.is_file():
        return _validate_file(path, store)
    if what and "/" not in what and store.runs.joinpath(what).is_dir():
        return _validate_folder(store.run_dir(what), store)
    run = run_in_warehouse(what, store)
    if run is None:
        raise Sme2Error(
            f"There is no run, file or folder {printable(what)!r}.",
            "`sme2 sql 'SELECT run_id FROM runs'` lists the runs.",
        )
    made = Checkup(what, "run")
    with made.step("evidence"):
        raise Sme2Error(
            f"The run is in the warehouse, but its evidence is gone: there is no {store.run_dir(what)}.",
            "Its numbers cannot be checked any more. " + AGAIN,
        )
    return made


def _validate_folder(folder: Path, store: Store) -> Checkup:
    if (folder / LISTING_FILE).is_file():
        return validate_export(folder)
    if (folder / SUMMARY_FILE).is_file():
        return validate_output(folder)
    if (folder / FOREIGN_FILE).is_file():
        return validate_foreign_run(folder, store)
    if _is_own_manifest(folder / MANIFEST_FILE):
        return validate_run(folder, store)
    if (folder / KIT_MANIFEST).is_file() or _has_trace(folder):
        return validate_kit_folder(folder)
    raise Sme2Error(
        f"{printable(str(folder))} is not a folder that can be validated.",
        "Give a run folder, an exported folder, the output folder of an experiment, or a run folder of the "
        "public kit.",
    )


def _has_trace(folder: Path) -> bool:
    """Whether there is one somewhere below; nobody means the whole machine."""
    if folder.resolve() == Path(folder.resolve().anchor):
        return False
    return any(name.endswith(".etdump") for *_, names in os.walk(folder) for name in names)


def _validate_file(path: Path, store: Store) -> Checkup:
    if path.suffix == ".etdump":
        return validate_trace(path)
    if path.suffix == ".pte":
        return validate_program(path)
    if path.name in (MANIFEST_FILE, FOREIGN_FILE, LISTING_FILE, KIT_METRICS):
        return _validate_folder(path.parent, store)
    if path.suffix == SUFFIX:
        return validate_perfetto(path)
    if path.suffix in _EXPERIMENT_SUFFIXES:
        return validate_experiment(path, store)
    raise Sme2Error(
        f"{printable(str(path))} is not a file that can be validated.",
        "Give an .etdump, a .pte, a manifest.json, a Perfetto trace or an experiment file.",
    )


def _is_own_manifest(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        # Broken, so judged by the folder: rounds are ours.
        return next(path.parent.glob("round_*"), None) is not None
    return isinstance(document, dict) and "run_id" in document and "identity" in document
