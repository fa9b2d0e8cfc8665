"""Models of torchvision and timm, where these are installed: `torchvision:resnet18`, `timm:resnet18`.

Weights are random: nothing is downloaded. Only the packages know their model names, and importing them
imports torch, so nothing is listed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from typing import Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.sources.base import Entries, Listed
from sme2_assets.models.spec import (
    EagerModel,
    ModelOption,
    ModelSpec,
    how_to_install,
)

DEFAULT_IMAGE = 224


class ImageModel:
    """A network and an image for it."""

    is_classifier = True

    def __init__(self, network: Any, channels: int, size: int) -> None:
        self._network = network
        self._shape = (1, channels, size, size)

    def get_eager_model(self) -> Any:
        return self._network.eval()

    def get_example_inputs(self) -> tuple[Any, ...]:
        import torch

        return (torch.randn(self._shape),)


class _VisionPackage(Listed):
    """A package of networks that are built by name."""

    name = ""
    prefix = ""
    automatic = False

    def list(self) -> Entries:
        return []

    def find(self, name: str) -> ModelSpec | None:
        return ModelSpec(
            name=f"{self.prefix}.{name}",
            description=f"{name} of {self.prefix}, random weights",
            source=self.prefix,
            place=f"package {self.prefix}",
            factory=functools.partial(self._checked, name),
            identify=lambda: {self.prefix: _version(self.prefix)},
            options=(ModelOption("image", "int"),),
        )

    def _checked(self, name: str, image: int | None = None) -> EagerModel:
        if importlib.util.find_spec(self.prefix) is None:
            raise ExportError(
                f"{self.prefix}:{name} needs the package {self.prefix!r}, which is not installed",
                how_to_install(self.prefix),
            )
        return self._build(name, image)

    def _build(self, name: str, image: int | None) -> EagerModel:
        raise NotImplementedError


class Torchvision(_VisionPackage):
    """Networks of torchvision."""

    name = prefix = "torchvision"

    def _build(self, name: str, image: int | None) -> EagerModel:
        zoo = importlib.import_module("torchvision.models")
        _require_name(self.prefix, name, zoo.list_models())
        return ImageModel(zoo.get_model(name, weights=None), 3, image or DEFAULT_IMAGE)


class Timm(_VisionPackage):
    """Networks of timm."""

    name = prefix = "timm"

    def _build(self, name: str, image: int | None) -> EagerModel:
        timm = importlib.import_module("timm")
        _require_name(self.prefix, name, timm.list_models())
        network = timm.create_model(name, pretrained=False)
        channels, height, _ = network.pretrained_cfg.get("input_size", (3, DEFAULT_IMAGE, DEFAULT_IMAGE))
        return ImageModel(network, channels, image or height)


def _require_name(package: str, name: str, known: Any) -> None:
    if name not in known:
        raise ExportError(
            f"{package} has no model {name!r}{did_you_mean(name, list(known))}",
            f"see {package}'s own list of models",
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
