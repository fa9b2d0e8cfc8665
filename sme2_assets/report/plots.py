"""Pictures of times, categories and histories.

Each is drawn once as a figure of matplotlib, in the colours of a light page. `png_bytes` makes a file of it
for Markdown and for Dagster's UI; report/svg.py makes it part of an HTML page, light and dark.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import pandas as pd

from sme2_assets.report.tables import arm_text

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
ARM_COLOURS = {"off": "#D55E00", "on": "#0072B2"}
# What a page turns into colours of its own: text and lines, secondary text, faint lines, the ground.
INK, DIM, FAINT, GROUND = "#000000", "#555555", "#BBBBBB", "#FFFFFF"
# Inches: beside text on a screen, and where a phone shows it without making its letters too small.
WIDE, NARROW = 7.2, 4.8


def category_time_figure(categories: pd.DataFrame, title: str, width: float = WIDE) -> Figure:
    """Time per inference by category, one stacked bar per run. Only for times that mean something.

    `categories` has the columns of the view category_summary, of one or both arms.
    """
    if (categories["fidelity"] == "emulated").any():
        raise ValueError("emulated times are not shown")
    bars = categories.assign(value=categories["mean_ns"] / 1e6)
    return _stacked_bars(bars, title, "mean time per inference (ms)", None, width)


def category_kernel_figure(categories: pd.DataFrame, title: str, width: float = WIDE) -> Figure:
    """Operators by category, those on the SME unit hatched: what an emulated run can show."""
    bars = categories[categories["category"] != "Overhead"]
    bars = bars.assign(value=bars["operators"], hatched=bars["sme2_operators"])
    hatched = f"hatched: on the SME unit{unknown_note(bars)}"
    return _stacked_bars(bars, title, f"operators per inference ({hatched})", "hatched", width)


def unknown_note(categories: pd.DataFrame) -> str:
    """What a picture of the unit leaves open, behind a comma; empty where nothing is."""
    count = int(categories["sme2_unknown_operators"].sum())
    return f", {count} unknown" if count else ""


def category_figure(categories: pd.DataFrame, title: str, width: float = WIDE) -> Figure:
    """The category shift: in kernels under emulation, else in time."""
    if (categories["fidelity"] == "emulated").any():
        return category_kernel_figure(categories, title, width)
    return category_time_figure(categories, title, width)


def category_picture(categories: pd.DataFrame, title: str) -> bytes:
    """The same as a PNG."""
    return png_bytes(category_figure(categories, title))


def latency_figure(inferences: pd.DataFrame, title: str, width: float = WIDE) -> Figure:
    """Inference times of each round, one panel per arm: box of the middle half, whiskers 5 % to 95 %.

    `inferences` has the columns sme2, fidelity, arch, round and duration_ns, of timed inferences without
    tracer. Only for times that mean something: the caller does not ask for it of emulated ones. Each arm has
    its own scale, for it is the spread that is shown; how far the arms are apart is said by the speedup.
    """
    arms = _arms(inferences)
    figure, panels = empty_figures(len(arms), 0.9 + 1.5 * len(arms), width)
    for axes, arm in zip(panels, arms, strict=True):
        colour = ARM_COLOURS[arm]
        rounds = list(inferences[inferences["sme2"] == arm].groupby("round"))
        axes.boxplot(
            [rows["duration_ns"] / 1e6 for _, rows in rounds],
            positions=[int(index) + 1 for index, _ in rounds],
            widths=0.5,
            whis=(5, 95),
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "edgecolor": colour},
            whiskerprops={"color": colour},
            capprops={"color": colour},
            medianprops={"color": GROUND},
        )
        axes.set_ylabel(f"{arm_label(inferences, arm)} (ms)")
        axes.ticklabel_format(axis="y", useOffset=False)
    _whole_numbers(panels[-1])
    differ = len({axes.get_ylim() for axes in panels}) > 1
    panels[-1].set_xlabel(f"round (a fresh process each){'; each panel has its own scale' if differ else ''}")
    panels[0].set_title(title, loc="left", fontsize=11, parse_math=False)
    return figure


def speedup_figure(
    comparison: pd.DataFrame, threshold: float, title: str, width: float = WIDE
) -> Figure | None:
    """The speedup of the model and of its categories with their intervals; None where there is no interval.

    `comparison` has the columns of the table comparisons, of one session. Within `threshold`, a ratio,
    a difference is too small to count.
    """
    rows = comparison[comparison["level"].isin(["model", "category"]) & comparison["speedup_low"].notna()]
    if "model" not in set(rows["level"]):
        return None
    rows = rows.sort_values("level", ascending=False, kind="stable")
    names = [
        "whole model" if level == "model" else name
        for level, name in zip(rows["level"], rows["category"], strict=True)
    ]
    figure, axes = empty_figure(1.1 + 0.34 * len(rows), width)
    axes.axvspan(1 / threshold, threshold, color=FAINT, alpha=0.45, linewidth=0, label="too small to count")
    axes.axvline(1, color=DIM, linewidth=0.8)
    for place, row in enumerate(rows.to_dict("records")):
        colour = INK if row["level"] == "model" else COLOURS.get(str(row["category"]), COLOURS["Other"])
        axes.plot([row["speedup_low"], row["speedup_high"]], [place, place], color=colour, linewidth=2.2)
        if not pd.isna(row["speedup"]):
            axes.plot(row["speedup"], place, marker="o", markersize=7, color=colour)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel("speedup with 95 % interval; above 1, SME2 is faster")
    _titled(figure, axes, title, ncols=2)
    return figure


def history_picture(history: pd.DataFrame, slower_since: list[pd.Timestamp], title: str) -> bytes:
    """One series over its runs; a line where it became slower.

    `history` has the columns of the view history, of one series.
    """
    figure, axes = empty_figure(height=2.6)
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
    axes.set_title(title, loc="left", fontsize=11, pad=14, parse_math=False)
    figure.autofmt_xdate()
    return png_bytes(figure)


def data_uri_markdown(png: bytes, alt: str) -> str:
    """Markdown with the picture inside, which Dagster's UI shows inline."""
    return f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _stacked_bars(bars: pd.DataFrame, title: str, axis: str, hatched: str | None, width: float) -> Figure:
    arms = _arms(bars)
    columns = 6 if width >= WIDE else 3
    figure, axes = empty_figure(1.4 + 0.75 * len(arms) + (0 if columns == 6 else 0.25), width)
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
            style: dict[str, Any] = {"color": colour, "edgecolor": GROUND, "height": 0.6}
            axes.barh(arm, part, left=left[arm], hatch="///", **style)
            axes.barh(arm, value - part, left=left[arm] + part, label=category, **style)
            left[arm] += value
    axes.set_yticks(range(len(arms)), [arm_label(bars, arm) for arm in arms])
    axes.invert_yaxis()
    axes.set_xlabel(axis)
    _titled(figure, axes, title, ncols=columns)
    return figure


def _arms(rows: pd.DataFrame) -> list[str]:
    return [sme2 for sme2 in ("off", "on") if sme2 in set(rows["sme2"])]


def _titled(figure: Figure, axes: Axes, title: str, ncols: int) -> None:
    """The title, and below the picture the meaning of its colours, each once."""
    # Names come from models: a dollar sign in one is no formula.
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        list(unique.values()),
        list(unique),
        loc="outside lower center",
        ncols=ncols,
        frameon=False,
        fontsize=8,
    )


def arm_label(rows: pd.DataFrame, arm: str) -> str:
    """What an arm is called beside its bars: its SME2 state, or that it is a reference."""
    return arm_text(rows[rows["sme2"] == arm].iloc[0].to_dict())


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def empty_figure(height: float, width: float = WIDE) -> tuple[Figure, Axes]:
    figure, [axes] = empty_figures(1, height, width)
    return figure, axes


def empty_figures(panels: int, height: float, width: float = WIDE) -> tuple[Figure, list[Axes]]:
    """A figure with panels one below the other, over one common axis."""
    # Imported here: it costs a second, and most processes that load this module draw nothing.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    made = figure.subplots(panels, squeeze=False, sharex=True)[:, 0]
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
        axes.xaxis.label.set_size(9)
        axes.yaxis.label.set_size(9)
    return figure, list(made)


def png_bytes(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
