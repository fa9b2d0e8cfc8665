"""What a published SME unit could do with counted work: a roofline per operator, and never a measurement.

The fast end of the range is the unit at its peak, or memory at its bandwidth, whichever takes longer. The
slow end pays for whole tiles even where a shape fills only part of one, for accumulators that a small shape
leaves idle, and in addition for memory, where the kernels write and read their packed inputs once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Unit:
    """The SME unit of a device, as published."""

    name: str
    # 10^9 operations per second that one core gets out of it, two per multiply-accumulate.
    gops: Mapping[str, float]
    # 10^9 bytes per second from memory.
    gb_s: float
    # Values of 32 bits in a vector: a tile has as many rows and columns.
    tile: int
    sources: tuple[str, ...]


_M4_RATES = "https://github.com/tzakharko/m4-sme-exploration/blob/main/reports/02-sme-outer-product.md"
_M4_VECTORS = "https://github.com/tzakharko/m4-sme-exploration/blob/main/reports/01-sme-overview.md"
_M4_MEMORY = "https://www.engadget.com/apples-m4-chip-arrives-with-a-big-focus-on-ai-142448428.html"
UNITS = (
    Unit(
        "Apple M4 performance core",
        {"fp32": 2000.0, "fp16": 2000.0, "int8": 4000.0},
        120.0,
        16,
        (_M4_RATES, _M4_VECTORS, _M4_MEMORY),
    ),
    Unit(
        "Apple M4 efficiency core",
        {"fp32": 360.0, "fp16": 360.0, "int8": 700.0},
        120.0,
        16,
        (_M4_RATES, _M4_VECTORS, _M4_MEMORY),
    ),
)
_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}


def countable(operators: pd.DataFrame) -> pd.DataFrame:
    """Those whose work is counted and whose shapes are known: nothing can be projected for the others."""
    shapes = operators["input_shape"].notna() & operators["output_shape"].notna()
    return operators[shapes & (operators["macs"].fillna(0) > 0)]


def priced(operators: pd.DataFrame) -> bool:
    """Whether the bytes of all their weights are known: those of 4 bits have no price here."""
    return not operators["data_type"].fillna("").str.contains("4W").any()


def projected_ns(operators: pd.DataFrame, unit: Unit) -> tuple[float, float]:
    """The shortest and longest total time that these operators could take on the unit."""
    kinds = [_kind(data_type) for data_type in operators["data_type"]]
    rates = np.array([unit.gops[kind] for kind in kinds])
    macs = operators["macs"].to_numpy(float)
    shapes = [_dimensions(shape) for shape in operators["output_shape"]]
    # Channels are last: each row of the product is a pixel or a token.
    columns = np.array([shape[-1] for shape in shapes], float)
    rows = np.array([_rows(*each) for each in zip(operators["node_kind"], shapes, strict=True)], float)
    inputs = np.array([np.prod(_dimensions(shape)) for shape in operators["input_shape"]], float)
    outputs = np.array([np.prod(shape) for shape in shapes], float)
    # Each weight meets every row once, and each input every column.
    values, packed = inputs + outputs + macs / rows, macs / columns
    byte_ns = np.array([_BYTES[kind] for kind in kinds]) / unit.gb_s
    peak_ns = 2 * macs / rates
    fast_ns = np.maximum(peak_ns, values * byte_ns)
    used = _used(rows, unit.tile) * _used(columns, unit.tile)
    slow_ns = peak_ns / used + (values + 2 * packed) * byte_ns
    return float(fast_ns.sum()), float(slow_ns.sum())


def _kind(data_type: object) -> str:
    """What is multiplied: dynamic quantisation also multiplies integers."""
    text = str(data_type).removeprefix("P")
    return "int8" if text.startswith("Q") else "fp16" if text.startswith("F16") else "fp32"


def _rows(node_kind: object, output: list[int]) -> float:
    """The rows of one product. Those of a batch have right-hand sides of their own, and share no tile."""
    return float(np.prod(output[-2:-1] if node_kind == "XNNBatchMatrixMultiply" else output[:-1]))


def _dimensions(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")]


def _used(size: np.ndarray, tile: int) -> np.ndarray:
    """How much of the unit a side of this size uses. Kernels accumulate in two tiles by two, and the peak
    needs all four: a side that fits into one tile leaves the other idle."""
    tiles = np.ceil(size / tile)
    return size / (tile * tiles) * np.minimum(tiles, 2) / 2
