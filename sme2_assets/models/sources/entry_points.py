"""Models that installed packages register in the entry-point group `sme2_assets.models`.

In the package's pyproject.toml:

    [project.entry-points."sme2_assets.models"]
    my_net = "my_package.models:MyNet"
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from sme2_assets.errors import ExportError
from sme2_assets.models.sources import Entries, Listed
from sme2_assets.models.sources.folder import RESERVED
from sme2_assets.models.sources.python_code import Signature, sha256_of_code, signature_of
from sme2_assets.models.spec import EagerModel, ModelProblem, ModelSpec, check_name

GROUP = "sme2_assets.models"


class EntryPoints(Listed):
    """Models of installed packages."""

    name = "entry point"
    prefix = ""
    automatic = True

    def list(self) -> Entries:
        return [_model_of(entry) for entry in _installed(tuple(sys.path))]


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> list[EntryPoint]:
    """The entry points on this path. Cached: looking through all packages takes a tenth of a second."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name)


def _model_of(entry: EntryPoint) -> ModelSpec | ModelProblem:
    place = _place(entry)
    try:
        check_name(entry.name)
        if entry.name in RESERVED:
            raise ExportError(f"{entry.name!r} is the name of a source of models", "rename the entry point")
        if not entry.attr:
            raise ExportError(f"{entry.value!r} names no class", "write package.module:Class")
        if not _top_level(entry).exists():
            raise ExportError(
                f"the package {entry.module.partition('.')[0]!r} is missing", "install it again"
            )
        signature = _signature(entry)
    except ExportError as error:
        return ModelProblem(entry.name, EntryPoints.name, place, error.what, error.remedy or "")
    return ModelSpec(
        name=entry.name,
        description=signature.description or f"{entry.attr} of {entry.module}",
        source=EntryPoints.name,
        place=place,
        factory=functools.partial(_build, entry),
        identify=functools.partial(_identify, entry),
        options=signature.options,
    )


def _place(entry: EntryPoint) -> str:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package"
    return f"{entry.value} of {distribution}"


def _top_level(entry: EntryPoint) -> Path:
    """The file or folder of the package; finding a top-level name imports nothing."""
    try:
        spec = importlib.util.find_spec(entry.module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return Path("/nonexistent")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or "/nonexistent")


def _signature(entry: EntryPoint) -> Signature:
    top = _top_level(entry)
    below = entry.module.split(".")[1:]
    module = top.joinpath(*below)
    candidates = [top] if top.is_file() else [module / "__init__.py", module.with_suffix(".py")]
    for path in candidates:
        if path.is_file() and path.suffix == ".py" and "." not in entry.attr:
            return signature_of(path, entry.attr)
    return Signature("", None)


def _identify(entry: EntryPoint) -> dict[str, str]:
    top = _top_level(entry)
    # An editable install keeps its version while its code changes.
    code = sha256_of_code(list(top.rglob("*.py")), top) if top.is_dir() else sha256_of_code([top], top.parent)
    return {
        "factory": entry.value,
        "distribution": f"{entry.dist.name}=={entry.dist.version}" if entry.dist is not None else "",
        "code": code,
    }


def _build(entry: EntryPoint, **options: Any) -> EagerModel:
    model: EagerModel = entry.load()(**options)
    return model
