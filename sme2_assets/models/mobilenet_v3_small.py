"""MobileNetV3-Small, written from table 2 of "Searching for MobileNetV3" (Howard et al., 2019).

1000 classes at 224x224: 2,542,856 parameters and 56.5 million multiply-accumulates. The weights are
seeded, not trained: only how it runs is measured, and nothing has to be downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sme2_assets.models.registry import SEED
from sme2_assets.models.seeding import seeded, seeded_images, settle_batch_norm

IMAGE_SIZE = 224
CLASSES = 1000


@dataclass(frozen=True)
class Bottleneck:
    """One row of the paper's table."""

    kernel: int
    expanded: int
    outputs: int
    squeeze: bool
    activation: type[nn.Module]
    stride: int


BOTTLENECKS = (
    Bottleneck(3, 16, 16, True, nn.ReLU, 2),
    Bottleneck(3, 72, 24, False, nn.ReLU, 2),
    Bottleneck(3, 88, 24, False, nn.ReLU, 1),
    Bottleneck(5, 96, 40, True, nn.Hardswish, 2),
    Bottleneck(5, 240, 40, True, nn.Hardswish, 1),
    Bottleneck(5, 240, 40, True, nn.Hardswish, 1),
    Bottleneck(5, 120, 48, True, nn.Hardswish, 1),
    Bottleneck(5, 144, 48, True, nn.Hardswish, 1),
    Bottleneck(5, 288, 96, True, nn.Hardswish, 2),
    Bottleneck(5, 576, 96, True, nn.Hardswish, 1),
    Bottleneck(5, 576, 96, True, nn.Hardswish, 1),
)


class MobileNetV3Small:
    """Builds the network with seeded weights, its example input and its calibration data."""

    def get_eager_model(self) -> nn.Module:
        model = seeded(MobileNetV3SmallModule, seed=SEED)
        settle_batch_norm(model, [seeded_images(8, IMAGE_SIZE, seed=SEED + 100 + n) for n in range(2)])
        return model

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return (seeded_images(1, IMAGE_SIZE, seed=SEED),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        return [(seeded_images(1, IMAGE_SIZE, seed=SEED + 200 + n),) for n in range(count)]


class MobileNetV3SmallModule(nn.Module):
    """Stem, eleven bottlenecks, the last 1x1 convolution, and a two-layer classifier."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        channels = 16
        layers: list[nn.Module] = [_conv(3, channels, kernel=3, stride=2, activation=nn.Hardswish)]
        for row in BOTTLENECKS:
            layers.append(InvertedResidual(channels, row))
            channels = row.outputs
        layers.append(_conv(channels, 576, kernel=1, activation=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, classes)
        )
        self.apply(_initialise)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(image)).flatten(1))


class InvertedResidual(nn.Module):
    """Expand by 1x1, depthwise, squeeze-and-excite, project by 1x1; a shortcut where shapes allow it."""

    def __init__(self, inputs: int, row: Bottleneck) -> None:
        super().__init__()
        self.shortcut = row.stride == 1 and inputs == row.outputs
        layers: list[nn.Module] = []
        if row.expanded != inputs:
            layers.append(_conv(inputs, row.expanded, kernel=1, activation=row.activation))
        layers.append(
            _conv(
                row.expanded,
                row.expanded,
                kernel=row.kernel,
                stride=row.stride,
                groups=row.expanded,
                activation=row.activation,
            )
        )
        if row.squeeze:
            layers.append(SqueezeExcite(row.expanded))
        layers.append(_conv(row.expanded, row.outputs, kernel=1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.shortcut else self.layers(x)


class SqueezeExcite(nn.Module):
    """Weight the channels by what the whole image shows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _round_to_eight(channels / 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            HardSigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class HardSigmoid(nn.Module):
    """ReLU6(x + 3) / 6, the paper's own formula.

    `nn.Hardsigmoid` and plain numbers compute the same, but ExecuTorch lowers their constants as tensors
    of another type and casts them in every inference, outside of XNNPACK: at fp16 that cuts the program
    into pieces. As buffers the constants follow the precision of the model.
    """

    three: Tensor
    sixth: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("three", torch.tensor(3.0), persistent=False)
        self.register_buffer("sixth", torch.tensor(1.0 / 6.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu6(x + self.three) * self.sixth


def _conv(
    inputs: int,
    outputs: int,
    *,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = None,
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01),
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


def _round_to_eight(channels: float) -> int:
    """The nearest multiple of eight, but never more than a tenth below what was asked for."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(module.bias)
