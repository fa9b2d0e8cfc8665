"""The model for the demo: small enough to emulate in a moment, with an operator of every category.

Convolutions (dense, depthwise, grouped, 1x1), a residual add, activations, a channel shuffle (data
movement), max pooling, a linear head and softmax. The global mean drops its dimensions, as people
write it; XNNPACK takes only the form that keeps them, so it stays a portable operator between two
delegate calls. About 20 million multiply-accumulates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sme2_assets.models.registry import SEED
from sme2_assets.models.seeding import seeded, seeded_images, settle_batch_norm

IMAGE_SIZE = 64
CLASSES = 10


class ToyCnn:
    """Builds the network with seeded weights, its example input and its calibration data."""

    def get_eager_model(self) -> nn.Module:
        model = seeded(ToyCnnModule, seed=SEED)
        settle_batch_norm(model, [seeded_images(8, IMAGE_SIZE, seed=SEED + 100 + n) for n in range(4)])
        return model

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return (seeded_images(1, IMAGE_SIZE, seed=SEED),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        return [(seeded_images(1, IMAGE_SIZE, seed=SEED + 200 + n),) for n in range(count)]


class ToyCnnModule(nn.Module):
    """Stem, inverted residual, grouped convolution with shuffle, dense convolution, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 32, stride=2), nn.ReLU())
        self.expand = nn.Sequential(_conv(32, 96, kernel=1), nn.Hardswish())
        self.depthwise = nn.Sequential(_conv(96, 96, groups=96), nn.Hardswish())
        self.project = _conv(96, 32, kernel=1)
        self.grouped = nn.Sequential(_conv(32, 64, stride=2, groups=2), nn.ReLU())
        self.dense = nn.Sequential(_conv(64, 64), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.mix = nn.Sequential(_conv(64, 128, kernel=1), nn.Hardswish())
        self.head = nn.Linear(128, CLASSES)
        # Wide enough that the classes differ clearly: near-uniform probabilities would hide a wrong kernel.
        nn.init.normal_(self.head.weight, std=0.4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        x = x + self.project(self.depthwise(self.expand(x)))
        x = _shuffle_channels(self.grouped(x), groups=2)
        x = self.pool(self.dense(x))
        x = self.mix(x).mean(dim=(2, 3))
        return torch.softmax(self.head(x), dim=-1)


def _conv(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def _shuffle_channels(x: Tensor, *, groups: int) -> Tensor:
    batch, channels, height, width = x.shape
    grouped = x.reshape(batch, groups, channels // groups, height, width)
    return grouped.transpose(1, 2).reshape(batch, channels, height, width)
