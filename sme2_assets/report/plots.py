"""Pictures, as PNG bytes."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe-Ito); Overhead is grey because it is no operator category.
COLOURS = {
    "CONV": "#0072B2",
    "GEMM": "#56B4E9",
    "Data Movement": "#E69F00",
    "Elementwise": "#009E73",
    "Other": "#CC79A7",
    "Overhead": "#999999",
}


def category_time_picture(categories: pd.DataFrame, title: str) -> bytes:
    """Time per inference by category, one stacked bar per run. Only for times that mean something.

    `categories` has the columns of the view category_summary, of one or both arms.
    """
    if (categories["fidelity"] != "hardware").any():
        raise ValueError("emulated times are not shown")
    bars = categories.assign(value=categories["mean_ns"] / 1e6)
    return _stacked_bars(bars, title, "mean time per inference (ms)", hatched=None)


def category_kernel_picture(categories: pd.DataFrame, title: str) -> bytes:
    """Operators by category, those with SME2 evidence hatched: what an emulated run can show."""
    bars = categories[categories["category"] != "Overhead"]
    bars = bars.assign(value=bars["operators"], hatched=bars["sme2_operators"])
    return _stacked_bars(bars, title, "operators per inference (hatched: SME2 kernel)", hatched="hatched")


def category_picture(categories: pd.DataFrame, title: str) -> bytes:
    """The category shift: in time on hardware, in kernels under emulation."""
    if (categories["fidelity"] == "hardware").all():
        return category_time_picture(categories, title)
    return category_kernel_picture(categories, title)


def history_picture(history: pd.DataFrame, slower_since: list[pd.Timestamp], title: str) -> bytes:
    """One series over its runs; a line where it became slower.

    `history` has the columns of the view history, of one series.
    """
    figure, axes = empty_picture(height=2.6)
    axes.plot(
        history["started_at"],
        history["median_ns"] / 1e6,
        marker="o",
        markersize=3,
        linewidth=1,
        color=COLOURS["CONV"],
    )
    for since in slower_since:
        axes.axvline(since, color="#D55E00", linestyle="--", linewidth=1)
        axes.annotate(
            "slower since", (since, 1), xycoords=("data", "axes fraction"), fontsize=8, color="#D55E00"
        )
    axes.set_ylim(0, 1.15 * float(history["median_ns"].max()) / 1e6)
    axes.set_ylabel("median (ms)")
    axes.set_title(title, loc="left", fontsize=11, pad=14)
    figure.autofmt_xdate()
    return png_bytes(figure)


def data_uri_markdown(png: bytes, alt: str) -> str:
    """Markdown with the picture inside, which Dagster's UI shows inline."""
    return f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _stacked_bars(bars: pd.DataFrame, title: str, axis: str, hatched: str | None) -> bytes:
    arms = [sme2 for sme2 in ("off", "on") if sme2 in set(bars["sme2"])]
    figure, axes = empty_picture(height=1.4 + 0.75 * len(arms))
    left = dict.fromkeys(arms, 0.0)
    for category, colour in COLOURS.items():
        of_category = bars[bars["category"] == category].set_index("sme2")
        if of_category.empty:
            continue
        for arm in arms:
            if arm not in of_category.index:
                continue
            # Overhead comes out negative by rounding now and then; a bar has no negative length.
            value = max(float(of_category.loc[arm, "value"]), 0.0)
            part = float(of_category.loc[arm, hatched]) if hatched else 0.0
            style: dict[str, Any] = {"color": colour, "edgecolor": "white", "height": 0.6}
            axes.barh(arm, part, left=left[arm], hatch="///", **style)
            axes.barh(arm, value - part, left=left[arm] + part, label=category, **style)
            left[arm] += value
    axes.set_yticks(range(len(arms)), [f"SME2 {arm}" for arm in arms])
    axes.invert_yaxis()
    axes.set_xlabel(axis)
    axes.set_title(title, loc="left", fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8
    )
    return png_bytes(figure)


def empty_picture(height: float) -> tuple[Figure, Axes]:
    # Imported here: it costs a second, and most processes that load this module draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def png_bytes(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
