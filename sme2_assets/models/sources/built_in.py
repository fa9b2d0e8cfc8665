"""The models that come with the package; their code is in `sme2_assets/models/`."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

from sme2_assets.models.sources import Entries, KnownModel, Listed, known_models
from sme2_assets.models.sources.python_code import signature_of
from sme2_assets.models.spec import (
    EagerModel,
    ModelOption,
    ModelSpec,
    cached_sha256,
)

_ROOM = Path(__file__).resolve().parent.parent
_PACKAGE = "sme2_assets.models"


class BuiltIn(Listed):
    """Models of `listed.yaml`."""

    name = "built-in"
    prefix = ""
    automatic = True

    def list(self) -> Entries:
        return [_spec(name, known) for name, known in known_models(self.name).items()]


def _spec(name: str, known: KnownModel) -> ModelSpec:
    files = [f"{module}.py" for module in (known.module, "seeding")]
    return ModelSpec(
        name=name,
        description=known.description,
        source=BuiltIn.name,
        place=f"{_PACKAGE}.{known.module}",
        factory=functools.partial(_build, known.module, known.factory),
        identify=lambda: {
            "factory": known.factory,
            **{file: cached_sha256(_ROOM / file) for file in files},
        },
        precisions=tuple(known.precisions),
        large=known.large,
        options=_options(known.module, known.factory),
    )


@functools.cache
def _options(module: str, factory: str) -> tuple[ModelOption, ...] | None:
    return signature_of(_ROOM / f"{module}.py", factory).options


def _build(module: str, factory: str, **options: Any) -> EagerModel:
    built: EagerModel = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), factory)(**options)
    return built
