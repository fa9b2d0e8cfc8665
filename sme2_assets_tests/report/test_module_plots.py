from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sme2_assets.report.module_plots import MODULE_COLOURS, OFF_COLOURS, module_picture, roofline_picture
from sme2_assets_tests.report.test_plots import SPECKS, assert_valid_png, pixels, width_of
from sme2_assets_tests.warehouse.made_operators import made_warehouse


def rows(view: str, platform: str, *states: str) -> pd.DataFrame:
    return made_warehouse().query(
        f"FROM {view} WHERE variant = 'made-fp32' AND platform = ? AND sme2 IN (SELECT unnest(?))",
        [platform, list(states)],
    )


@pytest.mark.parametrize("platform", ["linux", "emulated"])
@pytest.mark.parametrize("sme2", ["off", "on"])
def test_modules_are_drawn_with_the_colour_of_their_kernels(tmp_path, platform, sme2):
    modules = rows("module_summary", platform, sme2)
    # As if nothing told where the head runs.
    head = modules["module"] == "head"
    modules.loc[head, ["sme2_operators", "sme2_unknown_operators"]] = [0, 1]
    png = module_picture(modules, "a title")
    assert_valid_png(png)
    image = pixels(png, tmp_path)
    colours = MODULE_COLOURS if sme2 == "on" else OFF_COLOURS
    for kind, colour in colours.items():
        assert width_of(image, colour, slice(None)) > SPECKS, kind


def test_boxes_are_as_wide_as_their_time(tmp_path):
    modules = rows("module_summary", "linux", "on")
    image = pixels(module_picture(modules, "a title"), tmp_path)
    bars = slice(0, int(image.shape[0] * 0.8))
    whole = width_of(image, "#DDDDDD", bars)
    some = width_of(image, MODULE_COLOURS["some of them"], bars)
    share = modules.set_index("module").loc["features", "share"]
    assert some / whole == pytest.approx(share, rel=0.2), "but for its name"


def test_the_picture_of_an_emulated_run_does_not_depend_on_times():
    modules = rows("module_summary", "emulated", "on")
    drawn = module_picture(modules, "a title")
    assert drawn == module_picture(modules.assign(mean_ns=1e9, own_ns=5.0), "a title")


def test_negative_overhead_has_no_box():
    modules = rows("module_summary", "linux", "on")
    modules.loc[modules["module"] == "(overhead)", "mean_ns"] = -5_000.0
    assert_valid_png(module_picture(modules, "a title"))


def test_a_run_without_any_module_is_drawn():
    modules = rows("module_summary", "linux", "on")
    modules = modules[modules["module"].isin(["", "(unattributed)", "(overhead)"])]
    assert_valid_png(module_picture(modules, "a title"))


def test_the_roofline_shows_both_arms(tmp_path):
    both = roofline_picture(rows("bottlenecks", "linux", "off", "on"), "a title")
    one = roofline_picture(rows("bottlenecks", "linux", "on"), "a title")
    assert both is not None
    assert one is not None
    assert_valid_png(both)
    assert_valid_png(one)
    assert both != one
    assert pixels(both, tmp_path).std() > 0


def test_there_is_no_roofline_of_emulated_times_or_without_counted_work():
    assert roofline_picture(rows("bottlenecks", "emulated", "on"), "a title") is None
    measured = rows("bottlenecks", "linux", "on")
    assert roofline_picture(measured.assign(gops=np.nan), "a title") is None
    mixed = pd.concat([measured, rows("bottlenecks", "emulated", "off")])
    assert roofline_picture(mixed, "a title") is None
