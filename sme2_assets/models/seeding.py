"""Weights and data that are the same on every machine and every day.

The built-in models have no trained weights to download. Random ones are just as good for a profiler, as long
as activations neither vanish nor explode; for that, batch norm statistics are taken from real passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def seeded_images(count: int, size: int, *, seed: int) -> Tensor:
    """Normalised images (count, 3, size, size): noise at several scales.

    White noise alone would make every image look the same once it is pooled; coarse structure makes
    features, and so quantisation ranges, differ from image to image as they do with photographs.
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 3, size, size)
    for cells in (4, 16, size):
        noise = torch.randn(count, 3, cells, cells, generator=generator)
        images += nn.functional.interpolate(noise, size=(size, size), mode="nearest")
    return images / images.std()


def seeded(build: Callable[[], Model], *, seed: int) -> Model:
    """A model whose initial weights come from the seed alone; the caller's random state is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def settle_batch_norm(model: nn.Module, batches: list[Tensor]) -> None:
    """Set batch norm's running statistics from these batches and leave the model in eval mode."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        # None means the plain average over all batches, not an exponential one.
        norm.momentum = None
    model.train()
    # Fork the random state: dropout draws from it in train mode.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for batch in batches:
            model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
