"""Models of torchvision and timm, where these are installed: `torchvision:resnet18`, `timm:resnet18`.

Weights are random: nothing is downloaded. Only the packages know their model names, and importing them
imports torch, so nothing is listed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.sources import Entries, Listed, installed_version
from sme2_assets.models.spec import ModelOption, ModelSpec, how_to_install

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


class VisionPackage(Listed):
    """Networks that an installed package builds by name."""

    automatic = False

    def __init__(self, package: str) -> None:
        self.name = self.prefix = package

    def list(self) -> Entries:
        return []

    def find(self, name: str) -> ModelSpec | None:
        return ModelSpec(
            name=f"{self.prefix}.{name}",
            description=f"{name} of {self.prefix}, random weights",
            source=self.prefix,
            place=f"package {self.prefix}",
            factory=functools.partial(_build, self.prefix, name),
            identify=lambda: {self.prefix: installed_version(self.prefix)},
            options=(ModelOption("image", "int"),),
        )


def _build(package: str, name: str, image: int | None = None) -> ImageModel:
    if importlib.util.find_spec(package) is None:
        raise ExportError(
            f"{package}:{name} needs the package {package!r}, which is not installed", how_to_install(package)
        )
    network, channels, size = (_timm if package == "timm" else _torchvision)(name)
    return ImageModel(network, channels, image or size)


def _torchvision(name: str) -> tuple[Any, int, int]:
    """A network, and the channels and size of its image."""
    zoo = importlib.import_module("torchvision.models")
    _require_name("torchvision", name, zoo.list_models())
    return zoo.get_model(name, weights=None), 3, DEFAULT_IMAGE


def _timm(name: str) -> tuple[Any, int, int]:
    timm = importlib.import_module("timm")
    _require_name("timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=False)
    channels, height, _ = network.pretrained_cfg.get("input_size", (3, DEFAULT_IMAGE, DEFAULT_IMAGE))
    return network, channels, height


def _require_name(package: str, name: str, known: Any) -> None:
    if name not in known:
        raise ExportError(
            f"{package} has no model {name!r}{did_you_mean(name, list(known))}",
            f"see {package}'s own list of models",
        )
