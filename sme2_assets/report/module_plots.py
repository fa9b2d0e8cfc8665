"""Pictures of the model's own structure: time by module, and work against speed. Drawn as in plots.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from sme2_assets.analysis.pairing import operator_pairs, place_of
from sme2_assets.report.plots import COLOURS, DIM, FAINT, GROUND, WIDE, arm_label, empty_figure, png_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a module's CONV and GEMM ran on. The colours are those of the categories' palette.
MODULE_COLOURS = {
    "all CONV and GEMM on the SME unit": "#0072B2",
    "some of them": "#56B4E9",
    "none of them": "#E69F00",
    "unknown": "#CC79A7",
    "no CONV or GEMM": "#009E73",
    "no module": "#999999",
}
# With SME2 off there is nothing to tell apart.
OFF_COLOURS = {"CONV and GEMM": "#0072B2", "no CONV or GEMM": "#009E73", "no module": "#999999"}
NO_MODULE = ("(unattributed)", "(overhead)")
# Narrower boxes are drawn, but hold no name. Inches, and letters of the names per inch.
_NARROWEST_NAMED = 0.32
_CHARACTERS_PER_INCH = 16.4
# Names stay as they are on a dark page, for their boxes do.
_DARK_NAME, _LIGHT_NAME = "#111111", "#FDFDFD"
_LIGHT_BOXES = ("#DDDDDD", "#56B4E9", "#E69F00", "#999999")


def module_picture(modules: pd.DataFrame, title: str) -> bytes:
    """The figure as a PNG."""
    return png_bytes(module_figure(modules, title))


def module_figure(modules: pd.DataFrame, title: str, width: float = WIDE) -> Figure:
    """An icicle: the inference on top, below it its modules, as wide as their time, in order of execution.

    `modules` has the columns of the view module_summary, of one run. An emulated run has no times: its
    boxes are as wide as their operators are many.
    """
    timed = not (modules["fidelity"] == "emulated").any()
    weight = "mean_ns" if timed else "operators"
    boxes = _boxes(modules, weight)
    off = bool((modules["sme2"] == "off").all())
    depth = int(modules["depth"].max())
    figure, axes = empty_figure(1.5 + 0.42 * (depth + 1), width)
    colours = OFF_COLOURS if off else MODULE_COLOURS
    used = []
    for box in boxes:
        kind = _off_kind(box) if off else _kind(box)
        if box["depth"] > 0 and kind not in used:
            used.append(kind)
        _draw_box(axes, box, "#DDDDDD" if box["depth"] == 0 else colours[kind], timed, width)
    axes.set_xlim(0, 1)
    axes.set_ylim(depth + 1, 0)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel("width: mean time" if timed else "width: operators (emulated times mean nothing)")
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    from matplotlib.patches import Patch

    handles = [Patch(color=colours[kind], label=kind) for kind in colours if kind in used]
    columns = len(handles) if width >= WIDE else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure


def roofline_picture(operators: pd.DataFrame, title: str) -> bytes | None:
    """The figure as a PNG, if there is one."""
    figure = roofline_figure(operators, title)
    return None if figure is None else png_bytes(figure)


def roofline_figure(operators: pd.DataFrame, title: str, width: float = WIDE) -> Figure | None:
    """Achieved rate of each operator against its work; both arms where both were measured.

    `operators` has the columns of the view bottlenecks, of one or both arms. The dashed lines are the best
    that was seen here, which is not the peak of the machine. None where no operator has a rate: emulated,
    not counted, or too short for XNNPACK's whole microseconds.
    """
    if (operators["fidelity"] == "emulated").any():
        return None
    rated = operators[operators["gops"] > 0]
    if rated.empty:
        return None
    figure, axes = empty_figure(4.0, width)
    _log_scales(axes)
    arms = [sme2 for sme2 in ("off", "on") if sme2 in set(rated["sme2"])]
    if len(arms) == 2:
        _draw_moves(axes, operators, rated)
    for arm in arms:
        of_arm = rated[rated["sme2"] == arm]
        best = float(of_arm["gops"].max())
        axes.axhline(best, linestyle="--", linewidth=0.8, color=DIM)
        axes.annotate(
            f"best, {arm_label(of_arm, arm)}: {best:.1f}",
            (0.01, best),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            va="bottom",
            color=DIM,
        )
        for category, points in of_arm.groupby("category"):
            colour = COLOURS.get(str(category), COLOURS["Other"])
            filled = arm == "on" or len(arms) == 1
            axes.scatter(
                points["macs"],
                points["gops"],
                s=36,
                facecolors=colour if filled else GROUND,
                edgecolors=colour,
                linewidths=1.2,
                zorder=3,
                label=f"{category}, {arm_label(of_arm, arm)}",
            )
    axes.set_xlabel("multiply-accumulates of the operator")
    axes.set_ylabel(f"achieved {' and '.join(sorted(set(rated['rate_unit'])))}")
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    figure.legend(loc="outside lower center", ncols=4 if width >= WIDE else 2, frameon=False, fontsize=8)
    return figure


def _boxes(modules: pd.DataFrame, weight: str) -> list[dict[str, Any]]:
    """Every row with its left edge and width, as shares of the whole. Negative overhead has no width."""
    rows = modules.assign(weight=modules[weight].fillna(0).clip(lower=0).astype(float))
    ordered = rows.sort_values(["depth", "first_operator", "module"], na_position="last").to_dict("records")
    [root] = [row for row in ordered if row["depth"] == 0]
    # Clipping can make the parts larger than the whole.
    parts = sum(row["weight"] for row in ordered if row["depth"] == 1)
    total = max(root["weight"], parts) or 1.0
    root.update(left=0.0, width=1.0)
    cursor = {"": 0.0}
    for row in ordered[1:]:
        left = cursor[row["parent"]]
        row.update(left=left, width=row["weight"] / total)
        cursor[row["parent"]] = left + row["width"]
        cursor[row["module"]] = left
    return ordered


def _draw_box(axes: Axes, box: dict[str, Any], colour: str, timed: bool, width: float) -> None:
    axes.barh(
        box["depth"] + 0.5,
        box["width"],
        left=box["left"],
        height=0.94,
        color=colour,
        edgecolor=GROUND,
        linewidth=0.8,
    )
    if box["width"] * width < _NARROWEST_NAMED:
        return
    if box["depth"] == 0:
        name = f"inference, {box['weight'] / 1e6:.3f} ms" if timed else f"{box['operators']} operators"
    else:
        name = box["module"] if box["depth"] == 1 else box["module"].rsplit(".", 1)[1]
        name += f" {box['width']:.0%}" if timed else ""
    room = int(box["width"] * width * _CHARACTERS_PER_INCH)
    axes.text(
        box["left"] + box["width"] / 2,
        box["depth"] + 0.5,
        name if len(name) <= room else name[: max(room - 1, 1)] + "…",
        ha="center",
        va="center",
        fontsize=7.5,
        color=_DARK_NAME if colour in _LIGHT_BOXES else _LIGHT_NAME,
        clip_on=True,
        parse_math=False,
    )


def _log_scales(axes: Axes) -> None:
    """Logarithmic, with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "1235" else ""))


def _draw_moves(axes: Axes, operators: pd.DataFrame, rated: pd.DataFrame) -> None:
    """A thin line from each operator without SME2 to the same one with it, by its place."""
    off, on = (operators[operators["sme2"] == arm] for arm in ("off", "on"))
    points = {(row["sme2"], place_of(row)): (row["macs"], row["gops"]) for row in rated.to_dict("records")}
    for pair in operator_pairs(off, on):
        ends = [points[arm] for arm in (("off", pair.off), ("on", pair.on)) if arm in points]
        if len(ends) < 2:
            continue
        axes.plot(
            *zip(*ends, strict=True),
            color=FAINT,
            linewidth=0.8,
            zorder=1,
        )


def _kind(box: dict[str, Any]) -> str:
    if box["module"] in NO_MODULE:
        return "no module"
    if not box["matrix_operators"]:
        return "no CONV or GEMM"
    if box["sme2_operators"]:
        taken_by_all = box["sme2_operators"] >= box["matrix_operators"]
        return "all CONV and GEMM on the SME unit" if taken_by_all else "some of them"
    return "unknown" if box["sme2_unknown_operators"] else "none of them"


def _off_kind(box: dict[str, Any]) -> str:
    if box["module"] in NO_MODULE:
        return "no module"
    return "CONV and GEMM" if box["matrix_operators"] else "no CONV or GEMM"
