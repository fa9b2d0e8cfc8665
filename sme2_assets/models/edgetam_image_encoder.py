"""The image encoder of EdgeTAM, written from its paper, RepViT's and its published configuration.

EdgeTAM ("On-Device Track Anything Model", Zhou et al., 2025) is SAM 2 with a RepViT-M1 backbone
("RepViT: Revisiting Mobile CNN From ViT Perspective", Wang et al., 2023) and SAM 2's feature pyramid neck:

- backbone: widths 48, 96, 192, 384 at strides 4, 8, 16, 32 with 2, 2, 14, 2 blocks. A block is a depthwise
  3x3 token mixer (trained as 3x3 + 1x1 + identity), squeeze-and-excite in every other block, and a 1x1
  channel mixer of twice the width with GELU. M1 in the paper's first version is M0.9 in its last:
  5.1 M parameters and 0.8 GMAC as a classifier at 224x224.
- neck: 1x1 convolutions to 256 channels; the stride 32 map is upsampled (nearest), added to the stride 16
  map and then dropped.
- two 1x1 convolutions (to 32 and 64 channels) that SAM 2's mask decoder needs on the two finer maps. SAM 2
  applies them once per image, so a deployed encoder includes them.

For inference the branches and batch norms are folded into single convolutions, as the paper does. The
sine position encodings of the maps depend on the size alone: they are outputs only if asked for, since
at 1024x1024 they would put 84 MiB of constants into the program.

Weights are seeded unless a checkpoint is given. Modules are named as in EdgeTAM's own checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.models.registry import SEED
from sme2_assets.models.seeding import seeded, seeded_images, settle_batch_norm

IMAGE_SIZE = 1024
WIDTHS = (48, 96, 192, 384)
DEPTHS = (2, 2, 14, 2)
NECK_CHANNELS = 256
STRIDE = 32
# Batch norm statistics come from images of this size, whatever size is asked for: one model, many sizes.
SETTLE_SIZE = 128
# A 1024x1024 image has a hundred times the values of a 96x96 one, and calibration is slow.
MANY_PIXELS = 512 * 512
CALIBRATION_IMAGES_OF_MANY_PIXELS = 4


class EdgeTamImageEncoder:
    """Builds the encoder for square images of a given size, with seeded weights or those of a checkpoint."""

    # The stride 16 map comes after forty layers and reaches 12.5 at 1024x1024; the finer maps reach 20.
    minimum_sqnr_db: ClassVar[dict[str, float]] = {"int8": 8.0}

    def __init__(
        self,
        *,
        size: int = IMAGE_SIZE,
        checkpoint: str | Path | None = None,
        high_resolution_convs: bool = True,
        position_encodings: bool = False,
    ) -> None:
        if size < STRIDE or size % STRIDE:
            raise ExportError(
                f"edgetam_image_encoder cannot have size {size}: the backbone halves the image five times",
                f"use a multiple of {STRIDE}, such as 256, 512 or 1024",
            )
        self.size = size
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.high_resolution_convs = high_resolution_convs
        self.position_encodings = position_encodings

    def get_eager_model(self) -> nn.Module:
        model = seeded(self._unfused, seed=SEED)
        if self.checkpoint is None:
            settle_batch_norm(model, [seeded_images(4, SETTLE_SIZE, seed=SEED + 100 + n) for n in range(2)])
        else:
            load_encoder_checkpoint(model, self.checkpoint)
        return fused(model.eval())

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return (seeded_images(1, self.size, seed=SEED),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        if self.size**2 > MANY_PIXELS:
            count = min(count, CALIBRATION_IMAGES_OF_MANY_PIXELS)
        return [(seeded_images(1, self.size, seed=SEED + 200 + n),) for n in range(count)]

    def _unfused(self) -> EdgeTamImageEncoderModule:
        return EdgeTamImageEncoderModule(
            position_size=self.size if self.position_encodings else None,
            high_resolution_convs=self.high_resolution_convs,
        )


class EdgeTamImageEncoderModule(nn.Module):
    """Backbone, neck and the mask decoder's convolutions on the finer maps, in the form that is trained.

    Returns the maps of stride 4, 8 and 16, finest first, and after them their position encodings if the
    module was made with a `position_size`.
    """

    def __init__(self, *, position_size: int | None = None, high_resolution_convs: bool = True) -> None:
        super().__init__()
        self.trunk = nn.ModuleDict({"body": RepViT()})
        self.neck = FeaturePyramid(WIDTHS, NECK_CHANNELS)
        if high_resolution_convs:
            self.conv_s0 = nn.Conv2d(NECK_CHANNELS, NECK_CHANNELS // 8, 1)
            self.conv_s1 = nn.Conv2d(NECK_CHANNELS, NECK_CHANNELS // 4, 1)
        self.high_resolution_convs = high_resolution_convs
        self.positions = 0
        if position_size is not None:
            for index, stride in enumerate((4, 8, 16)):
                encoding = sine_position_encoding(NECK_CHANNELS, position_size // stride)
                self.register_buffer(f"position_{index}", encoding, persistent=False)
                self.positions += 1
        self.apply(_initialise)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        fine, middle, coarse = self.neck(self.trunk["body"](image))
        if self.high_resolution_convs:
            fine, middle = self.conv_s0(fine), self.conv_s1(middle)
        # A program may not return its own constants: a copy is an output like any other.
        encodings = (getattr(self, f"position_{index}").clone() for index in range(self.positions))
        return fine, middle, coarse, *encodings


class RepViT(nn.Module):
    """The backbone: returns the maps of the four stages, finest first."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS, depths: tuple[int, ...] = DEPTHS) -> None:
        super().__init__()
        self.stem = Stem(widths[0])
        inputs = widths[0]
        for index, (outputs, depth) in enumerate(zip(widths, depths, strict=True)):
            # Underscores, not a list: these are the names in the checkpoint.
            self.add_module(f"stages_{index}", Stage(inputs, outputs, depth, downsample=index > 0))
            inputs = outputs
        self.stages = len(widths)

    def forward(self, image: Tensor) -> list[Tensor]:
        x = self.stem(image)
        maps = []
        for index in range(self.stages):
            x = self.get_submodule(f"stages_{index}")(x)
            maps.append(x)
        return maps


class Stem(nn.Module):
    """Two convolutions of stride 2."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(3, outputs // 2, kernel=3, stride=2)
        self.act1 = nn.GELU()
        self.conv2 = ConvNorm(outputs // 2, outputs, kernel=3, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv2(self.act1(self.conv1(image)))


class Stage(nn.Module):
    """Blocks of one width; squeeze-and-excite in the first and every other one after it."""

    def __init__(self, inputs: int, outputs: int, depth: int, *, downsample: bool) -> None:
        super().__init__()
        self.downsample = Downsample(inputs, outputs) if downsample else nn.Identity()
        self.blocks = nn.Sequential(*(Block(outputs, squeeze=index % 2 == 0) for index in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.downsample(x))


class Downsample(nn.Module):
    """A block, a depthwise convolution of stride 2, a 1x1 convolution to the new width, a channel mixer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.pre_block = Block(inputs, squeeze=False)
        self.spatial_downsample = ConvNorm(inputs, inputs, kernel=3, stride=2, groups=inputs)
        self.channel_downsample = ConvNorm(inputs, outputs, kernel=1)
        self.ffn = ChannelMixer(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.channel_downsample(self.spatial_downsample(self.pre_block(x)))
        return x + self.ffn(x)


class Block(nn.Module):
    """Mix each channel over its neighbourhood, weight the channels, mix the channels at each position."""

    def __init__(self, channels: int, *, squeeze: bool) -> None:
        super().__init__()
        self.token_mixer = TokenMixer(channels)
        self.se = SqueezeExcite(channels) if squeeze else nn.Identity()
        self.channel_mixer = ChannelMixer(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.se(self.token_mixer(x))
        return x + self.channel_mixer(x)


class TokenMixer(nn.Module):
    """Depthwise 3x3, depthwise 1x1 and identity, added: one depthwise 3x3 once it is fused."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = ConvNorm(channels, channels, kernel=3, groups=channels)
        self.conv1 = ConvNorm(channels, channels, kernel=1, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.conv1(x) + x

    @torch.no_grad()
    def fuse(self) -> nn.Conv2d:
        convolution, point = self.conv.fuse(), self.conv1.fuse()
        # The 1x1 branch and the identity are 3x3 kernels that look at the middle only.
        convolution.weight[:, :, 1, 1] += point.weight[:, :, 0, 0] + 1.0
        _bias(convolution).add_(_bias(point))
        return convolution


class ChannelMixer(nn.Module):
    """1x1 to twice the width, GELU, 1x1 back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(channels, 2 * channels, kernel=1)
        self.act = nn.GELU()
        self.conv2 = ConvNorm(2 * channels, channels, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.act(self.conv1(x)))


class SqueezeExcite(nn.Module):
    """Weight the channels by what the whole image shows; a quarter of the width inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = (channels // 4 + 4) // 8 * 8
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc2(torch.relu(self.fc1(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


class ConvNorm(nn.Module):
    """A convolution and its batch norm, which fold into one convolution."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.c = nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
        )
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.c(x))

    @torch.no_grad()
    def fuse(self) -> nn.Conv2d:
        return torch.nn.utils.fusion.fuse_conv_bn_eval(self.c, self.bn)


class FeaturePyramid(nn.Module):
    """1x1 convolutions to one width; only the coarsest map is added to the next finer one, then dropped."""

    def __init__(self, widths: tuple[int, ...], channels: int) -> None:
        super().__init__()
        # Coarsest first, each one level down in a dictionary: these are the names in the checkpoint.
        self.convs = nn.ModuleList(
            nn.ModuleDict({"conv": nn.Conv2d(width, channels, 1)}) for width in reversed(widths)
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        lateral = [level["conv"](x) for level, x in zip(self.convs, reversed(maps), strict=True)]
        coarsest, coarse, *finer = lateral
        return [*reversed(finer), coarse + _twice_as_large(coarsest)]


def _twice_as_large(x: Tensor) -> Tensor:
    return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")


def sine_position_encoding(channels: int, size: int, *, temperature: float = 10000.0) -> Tensor:
    """(1, channels, size, size): rows in the first half of the channels, columns in the second.

    Positions count from 1 and are scaled to 2 pi; sines and cosines of falling frequency alternate.
    """
    half = channels // 2
    position = torch.arange(1, size + 1, dtype=torch.float32) / (size + 1e-6) * 2 * math.pi
    frequency = temperature ** (2 * (torch.arange(half) // 2) / half)
    angle = position[:, None] / frequency
    waves = torch.where(torch.arange(half) % 2 == 0, angle.sin(), angle.cos())
    rows = waves.T[:, :, None].expand(half, size, size)
    columns = waves.T[:, None, :].expand(half, size, size)
    return torch.cat([rows, columns])[None].contiguous()


def fused(model: nn.Module) -> nn.Module:
    """The same model with every branch and batch norm folded into one convolution; changes the model."""
    for name, child in model.named_children():
        if isinstance(child, ConvNorm | TokenMixer):
            setattr(model, name, child.fuse())
        else:
            fused(child)
    return model


def load_encoder_checkpoint(model: nn.Module, path: Path) -> None:
    """Fill the unfused encoder from a checkpoint of EdgeTAM, or from a state dict of the encoder alone.

    From a whole EdgeTAM only the encoder's part is read; in it, nothing may be missing or left over.
    """
    given = encoder_weights(_read_state_dict(path))
    wanted = model.state_dict()
    if "conv_s0.weight" not in wanted:
        given = {key: value for key, value in given.items() if not key.startswith(_HIGH_RESOLUTION)}
    missing = sorted(wanted.keys() - given.keys())
    unexpected = sorted(given.keys() - wanted.keys())
    other_shape = [
        f"{key} {tuple(given[key].shape)} instead of {tuple(wanted[key].shape)}"
        for key in sorted(wanted.keys() & given.keys())
        if given[key].shape != wanted[key].shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": other_shape}
    if any(problems.values()):
        listed = "; ".join(f"{what}: {_some(keys)}" for what, keys in problems.items() if keys)
        raise ExportError(
            f"{path} is not a checkpoint of the EdgeTAM image encoder: {listed}",
            "give EdgeTAM's own checkpoint (keys such as image_encoder.trunk.body.stem.conv1.c.weight), "
            "or a state dict of its image encoder",
        )
    model.load_state_dict(given)


_ENCODER = "image_encoder."
_MASK_DECODER = "sam_mask_decoder."
_HIGH_RESOLUTION = ("conv_s0.", "conv_s1.")


def encoder_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's part of a state dict, by this module's names."""
    if not any(key.startswith(_ENCODER) for key in state):
        return dict(state)
    weights = {}
    for key, value in state.items():
        if key.startswith(_ENCODER):
            weights[key.removeprefix(_ENCODER)] = value
        elif key.removeprefix(_MASK_DECODER).startswith(_HIGH_RESOLUTION):
            weights[key.removeprefix(_MASK_DECODER)] = value
    return weights


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ExportError(f"There is no checkpoint {path}", "give the path of a file that exists") from error
    # Any exception: a file that is not a checkpoint makes the unpickler fail in many ways.
    except Exception as error:
        raise ExportError(
            f"{path} could not be read as a checkpoint ({type(error).__name__})",
            "give a file that torch.save wrote; only tensors are read from it, no code",
        ) from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ExportError(
            f"{path} holds no state dict: a dictionary of tensors, or one under 'model', was expected",
            "save the model's state_dict(), not the model",
        )
    return content


def _some(keys: list[str], limit: int = 8) -> str:
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + more


def _bias(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None
    return convolution.bias


def _initialise(module: nn.Module) -> None:
    """Random convolutions; branches that are added weigh less than what they are added to.

    Trained ones do too (the paper starts some at zero). At full weight, forty additions of noise would
    amplify rounding errors until the int8 outputs are lost.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, ChannelMixer):
        nn.init.constant_(module.conv2.bn.weight, 0.3)
    elif isinstance(module, TokenMixer):
        nn.init.constant_(module.conv.bn.weight, 0.5)
        nn.init.constant_(module.conv1.bn.weight, 0.2)
