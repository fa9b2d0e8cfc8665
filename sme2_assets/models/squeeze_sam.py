"""SqueezeSAM, the interactive segmentation model of the case study, as far as it is published.

From "SqueezeSAM: User-Friendly Mobile Interactive Segmentation" (Varadarajan et al., 2023) and the
configuration its authors published: a U-Net in place of SAM's encoder; early fusion, that is, clicks and
boxes drawn as further channels of the image; 512x512 images, a first convolution of kernel and stride 2 to
64 channels; convolutions of 64, 128, 128, 128, 128, 164, 256 and 256 channels with ReLU and batch norm;
at the lowest resolution a transformer of depth 2 with 8 heads and a feed-forward of 256 that also carries
tokens for the masks and their quality; four masks, of which the last three are returned, and a quality head
of two layers of 256.

Our choices, because nothing published settles them: which convolutions are at which resolution; one channel
for clicks and one for the box; the decoder (bilinear upsampling, concatenated with the encoder's map, two
convolutions); joint self-attention of tokens and image, without position encodings (the convolutions before
it see the border); and the normalisation before ReLU rather than after it, so that it folds into the
convolutions. Masks are returned at half the size of the image; the caller scales them.

3.8 M parameters and 29.7 GMAC at 512x512. The paper compares itself with SAM only by ratios (100 times
smaller in its first version, 31.6 times in its last), so these numbers are those of this model, not a claim
about the authors'. Weights are seeded, not trained.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.models.registry import SEED
from sme2_assets.models.seeding import seeded, seeded_images, settle_batch_norm

IMAGE_SIZE = 512
CHANNELS = 5
PATCH_CHANNELS = 64
# The published widths, by resolution: half, a quarter, an eighth, a sixteenth of the image.
ENCODER = ((64,), (128, 128), (128, 128), (164, 256, 256))
STRIDE = 16
WIDTH = 256
HEADS = 8
FEED_FORWARD = 256
DEPTH = 2
MASKS = 4
MASKS_GIVEN = 3
MASK_CHANNELS = 64
# Batch norm statistics come from images of this size, whatever size is asked for: one model, many sizes.
SETTLE_SIZE = 128
# As a fraction of the image size.
CLICK_RADIUS = 1 / 32


class SqueezeSam:
    """Builds the network for square images of a given size, with a click and a box drawn on the inputs."""

    # Sums of up to 3456 products at half precision, fourteen layers deep: masks reach 26. At int8, 15 and 13.
    minimum_sqnr_db: ClassVar[dict[str, float]] = {"fp16": 20.0, "int8": 9.0}

    def __init__(self, *, size: int = IMAGE_SIZE) -> None:
        if size < STRIDE or size % STRIDE:
            raise ExportError(
                f"squeeze_sam cannot have size {size}: the encoder halves the image four times",
                f"use a multiple of {STRIDE}, such as 256 or 512",
            )
        self.size = size

    def get_eager_model(self) -> nn.Module:
        model = seeded(SqueezeSamModule, seed=SEED)
        settle_batch_norm(model, [prompted_images(4, SETTLE_SIZE, seed=SEED + 100 + n) for n in range(2)])
        return model

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return (prompted_images(1, self.size, seed=SEED),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        return [(prompted_images(1, self.size, seed=SEED + 200 + n),) for n in range(count)]


class SqueezeSamModule(nn.Module):
    """Prompted image (batch, 5, size, size) -> masks (batch, 3, size / 2, size / 2), qualities (batch, 3).

    Masks are logits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, PATCH_CHANNELS, 2, stride=2)
        self.encoder = nn.ModuleList()
        inputs = PATCH_CHANNELS
        for widths in ENCODER:
            self.encoder.append(_convolutions(inputs, widths))
            inputs = widths[-1]
        self.pool = nn.MaxPool2d(2)
        self.transformer = TokensAndImage()
        self.decoder = nn.ModuleList()
        for widths in reversed(ENCODER[:-1]):
            self.decoder.append(_convolutions(inputs + widths[-1], (widths[-1], widths[-1])))
            inputs = widths[-1]
        self.mask_head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, MASK_CHANNELS))
        self.quality_head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, MASKS))
        self.apply(_initialise)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder[0](self.patches(image))
        maps = []
        for stage in list(self.encoder)[1:]:
            maps.append(x)
            x = stage(self.pool(x))
        quality_token, mask_tokens, x = self.transformer(x)
        for stage, skipped in zip(self.decoder, reversed(maps), strict=True):
            x = stage(torch.cat([_twice_as_large(x), skipped], dim=1))
        masks = torch.bmm(self.mask_head(mask_tokens[:, -MASKS_GIVEN:]), x.flatten(2))
        qualities = self.quality_head(quality_token).flatten(1)[:, -MASKS_GIVEN:]
        return masks.reshape(x.shape[0], MASKS_GIVEN, x.shape[2], x.shape[3]), qualities


class TokensAndImage(nn.Module):
    """Learnt tokens and the positions of the lowest map, attending to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(1, 1 + MASKS, WIDTH))
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(DEPTH)))
        self.norm = LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The token for the qualities, those for the masks, and the map."""
        places = x.flatten(2).transpose(1, 2)
        # Programs take one image; only the statistics use several, and `expand` is not delegated.
        tokens = self.tokens if x.shape[0] == 1 else self.tokens.expand(x.shape[0], -1, -1)
        mixed = self.norm(self.blocks(torch.cat([tokens, places], dim=1)))
        updated = mixed[:, 1 + MASKS :].transpose(1, 2).reshape(x.shape)
        return mixed[:, :1], mixed[:, 1 : 1 + MASKS], updated


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward, each with a norm before it and added to its input."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.feed_forward_norm = LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, FEED_FORWARD), nn.ReLU(), nn.Linear(FEED_FORWARD, WIDTH)
        )
        # A buffer follows the precision of the model; a plain number would be cast in every inference.
        self.register_buffer("scale", torch.tensor((WIDTH // HEADS) ** -0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.attention_norm(x)
        queries = self._by_head(self.query(inside)) * self.scale
        keys, values = self._by_head(self.key(inside)), self._by_head(self.value(inside))
        weights = torch.softmax(torch.bmm(queries, keys.transpose(1, 2)), dim=-1)
        x = x + self.output(self._together(torch.bmm(weights, values), x.shape[0]))
        return x + self.feed_forward(self.feed_forward_norm(x))

    def _by_head(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        split = x.reshape(batch, places, HEADS, width // HEADS).transpose(1, 2)
        return split.reshape(batch * HEADS, places, width // HEADS)

    def _together(self, x: Tensor, batch: int) -> Tensor:
        _, places, width = x.shape
        return x.reshape(batch, HEADS, places, width).transpose(1, 2).reshape(batch, places, HEADS * width)


class LayerNorm(nn.LayerNorm):
    """Layer norm in single precision whatever the precision of the model, as is common.

    It is also needed: the half precision kernel in ExecuTorch 1.5.1 for arm64 computes wrong statistics for
    rows as long as these (seen: an output that has nothing to do with the right one).
    """

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight.float(), self.bias.float()
        normal = nn.functional.layer_norm(input.float(), self.normalized_shape, weight, bias, self.eps)
        return normal.to(input.dtype)


def prompted_images(count: int, size: int, *, seed: int) -> Tensor:
    """Images (count, 5, size, size): colours, then a disc where someone clicked, then a box around it."""
    generator = torch.Generator().manual_seed(seed)
    row, column = (0.3 + 0.4 * torch.rand(2, count, 1, 1, generator=generator)) * size
    half = (0.1 + 0.2 * torch.rand(count, 1, 1, generator=generator)) * size
    rows, columns = torch.arange(size)[:, None], torch.arange(size)[None, :]
    click = (rows - row) ** 2 + (columns - column) ** 2 <= (CLICK_RADIUS * size) ** 2
    box = ((rows - row).abs() <= half) & ((columns - column).abs() <= half)
    return torch.cat([seeded_images(count, size, seed=seed), torch.stack([click, box], dim=1).float()], dim=1)


def _convolutions(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for outputs in widths:
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        inputs = outputs
    return nn.Sequential(*layers)


def _twice_as_large(x: Tensor) -> Tensor:
    return nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.zeros_(module.bias)
