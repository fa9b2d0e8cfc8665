"""What tests read instead of making it again: exports of a model, and sessions measured with one of them.

Such a folder as `executorch-1.5.1-code-1/` has `models/` as artifacts have them, and `runs/` as a data folder
has them: an emulated pair, and a session of the machine that made it. `python -m sme2_assets_tests.archive`
makes it anew; `test_archive.py` shows that what is made now equals it. Belongs here: finding and copying.
Does not: making.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from pathlib import Path

from sme2_assets.errors import Sme2Error
from sme2_assets.models.artifact import EXPORT_CODE_VERSION, ExportedModel, load_exported
from sme2_assets.store import Store

VARIANTS = ("toy_cnn-fp32", "toy_cnn-fp16", "toy_cnn-int8")
# Only Linux has both a native platform and the emulator.
PLATFORMS = ("emulated", "linux")
HERE = Path(__file__).parent


def name_here() -> str:
    """What the archive that fits this installation is called."""
    return f"executorch-{importlib.metadata.version('executorch')}-code-{EXPORT_CODE_VERSION}"


def archive(folder: Path = HERE) -> Path:
    """The archive; an error if it was made by another ExecuTorch or other code."""
    if not (folder / name_here()).is_dir():
        others = ", ".join(path.name for path in sorted(folder.glob("executorch-*"))) or "empty"
        raise Sme2Error(
            f"The archive of the tests is {others}, and installed is {name_here()}.",
            "Run `python -m sme2_assets_tests.archive`, and commit what it writes.",
        )
    return folder / name_here()


def seed(artifacts: Path) -> None:
    """Puts the exports where `export_variant` looks for them; it takes those of the content that it wants."""
    for export in archive().glob("models/*/*"):
        place = artifacts / "models" / export.parent.name / export.name
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".seeding-", dir=place.parent) as staging:
            copy = shutil.copytree(export, Path(staging) / export.name)
            try:
                Path(copy).rename(place)
            except OSError:
                # Another worker was first.
                if not place.exists():
                    raise


def archived_model(variant: str, artifacts: Path) -> ExportedModel:
    """One of VARIANTS, in artifacts that were seeded."""
    [export] = archive().glob(f"models/{variant}/*")
    return load_exported(artifacts / "models" / variant / export.name)


def archived_run(platform: str, sme2: str) -> Path:
    """The folder of a run, only for reading. The emulated pair has both states, the native session `off`."""
    [folder] = archive().glob(f"runs/*-{platform}-sme2_{sme2}")
    return folder


def archived_store(root: Path, *platforms: str, published: bool = False) -> Store:
    """A data folder of the caller's own with the sessions of these platforms, or of both.

    `published`: with a warehouse of them, in which the pair is compared.
    """
    store = Store(root)
    for platform in platforms or PLATFORMS:
        for folder in archive().glob(f"runs/*-{platform}-sme2_*"):
            shutil.copytree(folder, store.run_dir(folder.name))
    if published:
        publish(store)
    return store


def publish(store: Store) -> None:
    """A warehouse of all runs that the data folder has, each pair compared."""
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.comparisons import compare_pair
    from sme2_assets.warehouse.sessions import take_session

    warehouse = Warehouse(store.warehouse)
    sessions = [take_session(store, warehouse, off) for off in sorted(store.runs.glob("*-sme2_off"))]
    warehouse.publish()
    for off, on in (session for session in sessions if len(session) == 2):
        compare_pair(warehouse, off, on)
    warehouse.publish()
