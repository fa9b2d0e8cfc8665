"""The models that come with the package."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sme2_assets.models.sources.base import Entries, Listed
from sme2_assets.models.sources.python_code import signature_of
from sme2_assets.models.spec import (
    COMMON_PRECISIONS,
    PRECISIONS,
    EagerModel,
    ModelOption,
    ModelSpec,
    cached_sha256,
)

_ROOM = Path(__file__).resolve().parent.parent
_PACKAGE = "sme2_assets.models"


@dataclass(frozen=True)
class _Entry:
    """A built-in model: what it is, and the modules of this package whose code decides what is built."""

    name: str
    description: str
    module: str
    factory: str
    precisions: tuple[str, ...] = COMMON_PRECISIONS
    sources: tuple[str, ...] = ("seeding",)
    large: bool = False


_ENTRIES = (
    _Entry(
        "toy_cnn",
        "Small CNN, 3x64x64, with an operator of every category and one that is not delegated",
        "toy_cnn",
        "ToyCnn",
    ),
    _Entry(
        "mobilenet_v3_small",
        "MobileNetV3-Small, 3x224x224, 1000 classes, 2.5 M parameters, 57 MMAC",
        "mobilenet_v3_small",
        "MobileNetV3Small",
    ),
    _Entry(
        "edgetam_image_encoder",
        "Image encoder of EdgeTAM: RepViT-M1 backbone and feature pyramid, 3x1024x1024 or smaller",
        "edgetam_image_encoder",
        "EdgeTamImageEncoder",
        large=True,
    ),
    _Entry(
        "squeeze_sam",
        "SqueezeSAM, interactive segmentation: U-Net with a small transformer, 5x512x512 or smaller",
        "squeeze_sam",
        "SqueezeSam",
        large=True,
    ),
    _Entry(
        "tiny_lm_prefill",
        "Small language model reading a prompt: 4 layers of width 256, 5.5 M parameters",
        "tiny_lm",
        "TinyLmPrefill",
        PRECISIONS,
    ),
    _Entry(
        "tiny_lm_decode",
        "The same language model adding one token, with its cache as inputs and outputs",
        "tiny_lm",
        "TinyLmDecode",
        PRECISIONS,
    ),
)


class BuiltIn(Listed):
    """A table in this file; the models' code is in `sme2_assets/models/`."""

    name = "built-in"
    prefix = ""
    automatic = True

    def list(self) -> Entries:
        return [_spec(entry) for entry in _ENTRIES]


def _spec(entry: _Entry) -> ModelSpec:
    modules = (entry.module, *entry.sources)
    return ModelSpec(
        name=entry.name,
        description=entry.description,
        source=BuiltIn.name,
        place=f"{_PACKAGE}.{entry.module}",
        factory=functools.partial(_build, entry.module, entry.factory),
        identify=lambda: {
            "factory": entry.factory,
            **{f"{module}.py": cached_sha256(_ROOM / f"{module}.py") for module in modules},
        },
        precisions=entry.precisions,
        large=entry.large,
        options=_options(entry.module, entry.factory),
    )


@functools.cache
def _options(module: str, factory: str) -> tuple[ModelOption, ...] | None:
    return signature_of(_ROOM / f"{module}.py", factory).options


def _build(module: str, factory: str, **options: Any) -> EagerModel:
    built: EagerModel = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), factory)(**options)
    return built
