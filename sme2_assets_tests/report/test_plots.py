from __future__ import annotations

import base64
import struct
import zlib

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from sme2_assets.report.plots import (
    COLOURS,
    category_kernel_figure,
    category_picture,
    category_time_figure,
    data_uri_markdown,
    history_picture,
    latency_figure,
    png_bytes,
)
from sme2_assets.warehouse import Warehouse

# The edges of letters have grey pixels, too.
SPECKS = 12


def categories(warehouse: Warehouse, platform: str, *states: str):
    return warehouse.query(
        "FROM category_summary WHERE platform = ? AND sme2 IN (SELECT unnest(?)) ORDER BY sme2, category",
        [platform, list(states or ("off", "on"))],
    )


def pixels(png: bytes, tmp_path) -> np.ndarray:
    (tmp_path / "picture.png").write_bytes(png)
    return (matplotlib.image.imread(tmp_path / "picture.png")[..., :3] * 255).round().astype(int)


def width_of(image: np.ndarray, colour: str, part: slice) -> int:
    """The widest row of this colour in a part of the picture's height."""
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(image[part] - rgb).max(axis=-1) <= 2).sum(axis=1).max())


def assert_valid_png(png: bytes) -> None:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, kinds = 8, []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + data)
        kinds.append(kind)
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")


@pytest.mark.parametrize("platform", ["linux", "emulated"])
@pytest.mark.parametrize("states", [("off", "on"), ("off",), ("on",)])
def test_the_picture_is_a_png_with_every_category(paired: Warehouse, tmp_path, platform, states):
    png = category_picture(categories(paired, platform, *states), "a title")
    assert_valid_png(png)
    image = pixels(png, tmp_path)
    for category, colour in COLOURS.items():
        drawn = width_of(image, colour, slice(None)) > SPECKS
        assert drawn == (category != "Overhead" or platform == "linux"), category


def test_bars_are_as_long_as_the_times(paired: Warehouse, tmp_path):
    rows = categories(paired, "linux")
    image = pixels(png_bytes(category_time_figure(rows, "a title")), tmp_path)
    middle = int(image.shape[0] * 0.42)
    off, on = (
        width_of(image, COLOURS["CONV"], part) for part in (slice(0, middle), slice(middle, 2 * middle))
    )
    conv = rows[rows["category"] == "CONV"].set_index("sme2")["mean_ns"]
    assert off / on == pytest.approx(conv["off"] / conv["on"], rel=0.03)


def test_negative_overhead_has_no_bar(paired: Warehouse, tmp_path):
    rows = categories(paired, "linux")
    rows.loc[rows["category"] == "Overhead", "mean_ns"] = -300_000.0
    image = pixels(png_bytes(category_time_figure(rows, "a title")), tmp_path)
    bars = slice(0, int(image.shape[0] * 0.72))
    assert width_of(image, COLOURS["Overhead"], bars) <= SPECKS
    assert width_of(image, COLOURS["Other"], bars) > 20, "and covers no other"


def test_emulated_times_are_never_drawn(paired: Warehouse):
    for platform in ("emulated", "linux"):
        rows = categories(paired, platform)
        if platform == "linux":
            rows.loc[rows["sme2"] == "on", "fidelity"] = "emulated"
        with pytest.raises(ValueError, match="emulated times"):
            category_time_figure(rows, "a title")
        # What is drawn instead does not depend on times.
        assert category_picture(rows, "a title") == png_bytes(
            category_kernel_figure(rows.assign(mean_ns=1.0), "a title")
        )


def test_panels_of_different_scales_say_so():
    inferences = pd.DataFrame(
        [
            {
                "sme2": sme2,
                "fidelity": "hardware",
                "arch": "aarch64",
                "round": n // 5,
                "duration_ns": ns + 1000 * n,
            }
            for sme2, ns in (("off", 4_000_000), ("on", 1_000_000))
            for n in range(10)
        ]
    )
    [_, on] = latency_figure(inferences, "a title").axes
    assert "each panel has its own scale" in on.get_xlabel()
    [alone] = latency_figure(inferences[inferences["sme2"] == "on"], "a title").axes
    assert "scale" not in alone.get_xlabel()


def test_the_ui_gets_the_picture_inline(paired: Warehouse):
    png = category_picture(categories(paired, "linux"), "a title")
    text = data_uri_markdown(png, "shift")
    assert text.startswith("![shift](data:image/png;base64,")
    assert base64.b64decode(text.removesuffix(")").split("base64,")[1]) == png


def test_a_history_is_drawn_with_the_night_it_became_slower():
    nights = pd.date_range("2026-01-01", periods=20, tz="UTC")
    history = pd.DataFrame({"started_at": nights, "median_ns": [1e6] * 10 + [2e6] * 10})
    plain = history_picture(history, [], "series")
    marked = history_picture(history, [nights[10]], "series")
    assert plain.startswith(b"\x89PNG")
    assert plain != marked
