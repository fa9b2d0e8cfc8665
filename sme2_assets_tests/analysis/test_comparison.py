from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from sme2_assets.analysis.comparison import ArmRounds, compare, why_not_a_pair, why_times_do_not_compare
from sme2_assets.analysis.statistics import paired_speedup

ROUNDS = range(6)


def run(sme2: str, **differing: Any) -> dict[str, Any]:
    return {
        "run_id": f"r-{sme2}",
        "session_id": "s",
        "variant": "toy_cnn-fp32",
        "model": "toy_cnn",
        "precision": "fp32",
        "platform": "linux",
        "sme2": sme2,
        "experiment": "sme2",
        "arm": sme2,
        "threads": 1,
        "fidelity": "hardware",
        "device": "a-cpu-0a1b2c",
        "arch": "aarch64",
        "pte_sha256": "p",
        "runner_pair": "r",
        "executorch_version": "1.5.1",
        "cpus": "",
        "power_mode": "",
        "method": "forward",
        "sqnr_db": 90.0,
        "sqnr_threshold_db": 40.0,
        "eager_fault": None,
        "arms_sqnr_db": 90.0,
        "arms_values": 9,
        "arms_fault": None,
        **differing,
    }


def _unit(kind: str, name: str) -> str | None:
    if kind not in ("Convolution", "Fully Connected"):
        return None
    return "on" if "PF32" in name else "unknown" if "QP8" in name else "off"


def operator(position: float, name: str, us: float, **differing: Any) -> dict[str, Any]:
    kind = name.split(" (")[0]
    return {
        "backend": "xnnpack",
        "delegate": 0.0,
        "position": position,
        "name": name,
        "op_type": kind,
        "category": {"Convolution": "CONV", "Fully Connected": "GEMM"}.get(kind, "Data Movement"),
        "on_sme_unit": _unit(kind, name),
        "known": True,
        "certain_sme_samples": 0,
        "us": us,
        **differing,
    }


def arm(sme2: str, operators: list[dict[str, Any]], **differing: Any) -> ArmRounds:
    """An arm whose rounds are equal but for one part in a thousand per round."""
    rows = [
        {**{k: v for k, v in op.items() if k != "us"}, "round": r, "median_ns": op["us"] * (1000 + r)}
        for op in operators
        for r in ROUNDS
    ]
    operator_rounds = pd.DataFrame(rows)
    categories = operator_rounds.groupby(["round", "category"], as_index=False)["median_ns"].sum()
    overhead = pd.DataFrame(
        {"round": ROUNDS, "category": "Overhead", "median_ns": [900.0 + r for r in ROUNDS]}
    )
    latency = operator_rounds.groupby("round", as_index=False)["median_ns"].sum()
    latency["mean_ns"] = latency["median_ns"]
    return ArmRounds(run(sme2, **differing), latency, pd.concat([categories, overhead]), operator_rounds)


OFF = [
    operator(0, "Convolution (NHWC, F32) IGEMM #1", 700),
    operator(1, "Transpose (ND, X32) #1", 50),
    operator(2, "Fully Connected (NC, F32) GEMM #1", 300),
]
ON = [
    operator(0, "Convolution (NHWC, PF32) IGEMM #1", 350),
    operator(1, "Transpose (ND, X32) #1", 50),
    operator(2, "Fully Connected (NC, PF32) GEMM #1", 100),
]


def at(rows: pd.DataFrame, level: str, **wanted: Any) -> dict[str, Any]:
    rows = rows[rows["level"] == level]
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1, rows
    return dict(rows.iloc[0])


def assert_counts_add_up(rows: pd.DataFrame) -> None:
    counts = [name for name in rows if "operators" in name and name != "placebo_operators"]
    assert len(counts) == 5
    for count in counts:
        by_level = rows.groupby("level")[count].sum()
        assert by_level["operator"] == by_level["category"] == by_level["model"], count


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("session_id", "not interleaved"),
        ("runner_pair", "runners"),
        ("cpus", "CPUs"),
        ("power_mode", "power modes"),
        ("method", "methods"),
        ("pte_sha256", "model files"),
        ("variant", "models"),
        ("device", "devices"),
        ("threads", "thread counts"),
        ("fidelity", "fidelities"),
    ],
)
def test_a_mixed_pair_is_refused_with_the_reason(column, word):
    reason = why_not_a_pair(run("off"), run("on", **{column: "another"}))
    assert reason is not None
    assert word in reason
    assert "another" in reason


def test_a_true_pair_is_not_refused():
    assert why_not_a_pair(run("off"), run("on")) is None


@pytest.mark.parametrize(("off", "on"), [("on", "off"), ("off", "off"), ("on", "on")])
def test_a_pair_is_off_and_on_in_this_order(off, on):
    assert why_not_a_pair(run(off), run(on)) is not None


def test_operators_without_a_certain_partner_count_once():
    """SME2 adds a packing step and a product: which of the three are the two of the other arm is open."""
    product = "Fully Connected (NC, F32) GEMM"
    off = [operator(place, f"{product} #{place + 1}", 300) for place in range(2)]
    more = [operator(place, f"{product} #{place}", 100) for place in (1, 2, 3)]
    on = [operator(0, "Pack LH (X8) #1", 20), *more]
    for first, second in ((off, on), (on, off)):
        rows = compare(arm("off", first), arm("on", second))
        assert_counts_add_up(rows)
        products = sum("GEMM" in op["name"] for op in second)
        assert at(rows, "model")["operators"] == len(second)
        assert at(rows, "model")["matrix_operators"] == products
        assert at(rows, "category", category="GEMM")["operators"] == products


def test_a_reference_counts_its_matrix_operators_and_says_nothing_about_the_unit():
    elsewhere = {"fidelity": "reference", "arch": "x86_64"}
    operators = [{**op, "on_sme_unit": None} for op in OFF]
    rows = compare(arm("off", operators, **elsewhere), arm("on", operators, **elsewhere))
    assert at(rows, "model")["matrix_operators"] == 2
    assert rows[["sme2_operators_a", "sme2_operators_b", "sme2_operators_unknown"]].isna().all(axis=None)
    assert_counts_add_up(rows)


def test_speedup_is_off_over_on_with_interval_and_n():
    rows = compare(arm("off", OFF), arm("on", ON))
    convolution = at(rows, "operator", position=0)
    off, on = [700.0 * (1000 + r) for r in ROUNDS], [350.0 * (1000 + r) for r in ROUNDS]
    estimate = paired_speedup(off, on)
    assert convolution["speedup"] == estimate.ratio == pytest.approx(2)
    assert (convolution["speedup_low"], convolution["speedup_high"]) == (estimate.low, estimate.high)
    assert convolution["n"] == 6
    assert convolution["a_ns"] == pytest.approx(701_750)
    assert convolution["b_ns"] == pytest.approx(350_875)
    assert at(rows, "category", category="GEMM")["speedup"] == pytest.approx(3)
    assert at(rows, "category", category="Data Movement")["verdict"] == "no difference"
    model = at(rows, "model")
    assert model["speedup"] == pytest.approx(1050 / 500)
    assert model["verdict"] == "faster"
    assert (model["a_run_id"], model["b_run_id"]) == ("r-off", "r-on")


def test_counts_add_up_from_operators_to_categories_to_model():
    rows = compare(arm("off", OFF), arm("on", ON))
    assert_counts_add_up(rows)
    model = at(rows, "model")
    assert (model["operators"], model["matrix_operators"]) == (3, 2)
    assert (model["sme2_operators_a"], model["sme2_operators_b"]) == (0, 2)
    assert model["sme2_operators_unknown"] == 0
    assert at(rows, "category", category="Overhead")["operators"] == 0


def test_operators_are_paired_by_position_and_not_by_name():
    same_names = [operator(p, "Fully Connected (NC, F32) GEMM #1", us) for p, us in ((0, 100), (1, 900))]
    swapped_numbers = [
        operator(0, "Fully Connected (NC, PF32) GEMM #2", 50),
        operator(1, "Fully Connected (NC, PF32) GEMM #1", 300),
    ]
    rows = compare(arm("off", same_names), arm("on", swapped_numbers))
    assert at(rows, "operator", position=0)["speedup"] == pytest.approx(2)
    assert at(rows, "operator", position=1)["speedup"] == pytest.approx(3)
    assert at(rows, "operator", position=1)["b_name"] == "Fully Connected (NC, PF32) GEMM #1"


def test_one_position_of_two_delegates_is_two_operators():
    off = [operator(0, "Convolution (NHWC, F32) IGEMM #1", 100, delegate=d) for d in (0.0, 1.0)]
    on = [
        operator(0, "Convolution (NHWC, PF32) IGEMM #1", us, delegate=d) for d, us in ((0.0, 50), (1.0, 25))
    ]
    rows = compare(arm("off", off), arm("on", on))
    assert at(rows, "operator", delegate=0)["speedup"] == pytest.approx(2)
    assert at(rows, "operator", delegate=1)["speedup"] == pytest.approx(4)


def test_portable_operators_have_no_delegate_and_are_paired_all_the_same():
    mean = operator(0, "native_call_mean.out", 20, backend="portable", delegate=math.nan)
    rows = compare(arm("off", [*OFF, mean]), arm("on", [*ON, mean]))
    portable = at(rows, "operator", backend="portable")
    assert (portable["a_ns"], portable["speedup"]) == (20_050, pytest.approx(1))
    assert pd.isna(portable["delegate"])
    assert_counts_add_up(rows)


def test_an_operator_in_one_arm_only_is_not_comparable_and_counted():
    extra = operator(3, "Convert (NC, F32, QS8) #1", 40, category="Other")
    for off, on, absent in ((OFF, [*ON, extra], "a_name"), ([*OFF, extra], ON, "b_name")):
        rows = compare(arm("off", off), arm("on", on))
        row = at(rows, "operator", position=3)
        assert (row["verdict"], row["reason"]) == ("not comparable", "It is in one arm only.")
        assert pd.isna(row[absent])
        assert (row["op_type"], row["category"]) == ("Convert", "Other")
        # Its category is in one arm only, too: shown, not dropped. Those of the second arm are counted.
        category = at(rows, "category", category="Other")
        assert (category["verdict"], category["operators"]) == ("not comparable", int(extra in on))
        assert at(rows, "model")["operators"] == len(on)
        assert_counts_add_up(rows)
        assert at(rows, "model")["verdict"] == "faster"


def test_different_operators_in_one_place_are_not_compared():
    on = [*ON[:2], operator(2, "Convolution (NHWC, PF32) IGEMM #2", 100)]
    rows = compare(arm("off", OFF), arm("on", on))
    for op_type in ("Fully Connected", "Convolution"):
        row = at(rows[rows["position"] == 2], "operator", op_type=op_type)
        assert (row["verdict"], row["reason"]) == ("not comparable", "It is in one arm only.")
        assert pd.isna(row["speedup"])
    assert_counts_add_up(rows)


CONVOLUTIONS = [
    operator(0, "Convolution (NHWC, F32) IGEMM #1", 6400),
    operator(1, "Convolution (NHWC, F32) IGEMM #2", 1600),
    operator(2, "Fully Connected (NC, F32) GEMM #1", 800),
    operator(3, "Convolution (NHWC, F32) IGEMM #3", 400),
]


def four_times_faster(*extra: tuple[int, str]) -> list[dict[str, Any]]:
    """Every operator with SME2 on, and more of them before some positions."""
    rows = [{**op, "name": op["name"].replace("F32", "PF32"), "us": op["us"] / 4} for op in CONVOLUTIONS]
    for position, name in extra:
        rows.insert(position, operator(0, name, 20))
    return [{**op, "position": float(position)} for position, op in enumerate(rows)]


@pytest.mark.parametrize("position", range(5))
def test_a_row_that_one_arm_has_more_changes_no_speedup(position: int):
    rows = compare(arm("off", CONVOLUTIONS), arm("on", four_times_faster((position, "Pack LH (X32) #1"))))
    operators = rows[rows["level"] == "operator"]
    paired = operators[operators["op_type"] != "Pack LH"]
    assert paired["speedup"].tolist() == pytest.approx([4] * 4)
    assert paired["position"].tolist() == [0, 1, 2, 3]
    assert paired["b_position"].tolist() == [at + (at >= position) for at in range(4)]
    assert at(rows, "operator", op_type="Pack LH")["reason"] == "It is in one arm only."
    assert_counts_add_up(rows)


def test_where_the_pairs_are_not_certain_there_is_no_speedup_but_the_reason():
    on = four_times_faster((0, "Convolution (NHWC, PF32) IGEMM #9"))
    operators = compare(arm("off", CONVOLUTIONS), arm("on", on)).query("level == 'operator'")
    certain = operators[operators["speedup"].notna()]
    assert certain["a_name"].tolist() == [op["name"] for op in CONVOLUTIONS[2:]]
    assert certain["speedup"].tolist() == pytest.approx([4, 4])
    others = operators[operators["speedup"].isna()]
    assert len(others) == 5
    assert (others["verdict"] == "not comparable").all()
    assert others["reason"].str.contains("which of several of its kind").all()


def test_a_round_that_one_arm_lacks_is_not_compared():
    on = arm("on", ON)
    short = on.operator_rounds[~((on.operator_rounds["round"] == 5) & (on.operator_rounds["position"] == 0))]
    rows = compare(arm("off", OFF), replace(on, operator_rounds=short))
    row = at(rows, "operator", position=0)
    assert (row["verdict"], row["reason"]) == ("not comparable", "It is not in every round of both arms.")
    assert row["a_name"] == "Convolution (NHWC, F32) IGEMM #1"


def test_an_operator_of_zero_microseconds_has_no_speedup():
    tiny = operator(3, "Copy (NC, X32) #1", 0)
    rows = compare(arm("off", [*OFF, {**tiny, "us": 1}]), arm("on", [*ON, tiny]))
    row = at(rows, "operator", position=3)
    assert (row["verdict"], row["n"]) == ("insufficient data", 6)
    assert "resolution" in row["reason"]
    assert pd.isna(row["speedup"])
    assert pd.isna(row["speedup_low"])


def test_an_emulated_pair_has_no_times_anywhere():
    emulated = {"platform": "emulated", "fidelity": "emulated"}
    rows = compare(arm("off", OFF, **emulated), arm("on", ON, **emulated))
    for column in ("a_ns", "b_ns", "speedup", "speedup_low", "speedup_high", "n"):
        assert rows[column].isna().all(), column
    assert (rows["verdict"] == "not comparable").all()
    assert (rows["fidelity"] == "emulated").all()
    assert at(rows, "model")["sme2_operators_b"] == 2
    assert_counts_add_up(rows)


@pytest.mark.parametrize("wrong", ["off", "on"])
@pytest.mark.parametrize("sqnr_db", [39.9, -200.0, math.nan])
def test_wrong_outputs_give_no_speedup(wrong, sqnr_db):
    arms = {
        sme2: arm(sme2, operators, **({"sqnr_db": sqnr_db} if sme2 == wrong else {}))
        for sme2, operators in (("off", OFF), ("on", ON))
    }
    assert why_times_do_not_compare(arms["off"].run, arms["on"].run) is not None
    rows = compare(arms["off"], arms["on"])
    assert (rows["verdict"] == "not comparable").all()
    assert rows["speedup"].isna().all()
    assert f"With SME2 {wrong} the outputs are wrong" in at(rows, "model")["reason"]


def test_outputs_that_just_miss_the_threshold_are_not_said_to_reach_it():
    missed = run("off", sqnr_db=39.97)
    assert "39.97 dB against eager, 40 dB" in str(why_times_do_not_compare(missed, run("on")))
    old = run("on", arms_values=math.nan, arms_sqnr_db=39.97)
    assert "39.97 dB, 40 dB needed" in str(why_times_do_not_compare(run("off"), old))


def test_outputs_that_just_reach_the_threshold_are_right():
    assert why_times_do_not_compare(run("off", sqnr_db=40.0), run("on")) is None


def test_identical_arms_are_a_pair_and_their_order_does_not_matter_to_sme2():
    first = run("off", experiment="aa", arm="a")
    second = run("off", experiment="aa", arm="b")
    assert why_not_a_pair(first, second) is None
    assert "arms" in str(why_not_a_pair(second, first))


@pytest.mark.parametrize("sqnr_db", [39.9, -200.0, math.nan])
def test_arms_of_an_old_run_whose_outputs_differ_give_no_speedup(sqnr_db: float):
    reason = why_times_do_not_compare(run("off"), run("on", arms_sqnr_db=sqnr_db, arms_values=None))
    assert "outputs of the arms differ" in str(reason)


def test_arms_that_differ_beyond_rounding_give_no_speedup_however_good_the_average():
    differing = run("on", arms_sqnr_db=70.0, arms_fault="conv2d_3 (features.1) differs: in channel 15")
    assert "conv2d_3 (features.1) differs" in str(why_times_do_not_compare(run("off"), differing))


def test_one_wrong_channel_against_eager_gives_no_speedup():
    wrong = run("off", eager_fault="output 0: one channel or row has 0.0 dB")
    assert "With SME2 off the outputs are wrong" in str(why_times_do_not_compare(wrong, run("on")))


def test_what_identical_arms_reach_is_not_called_a_difference():
    slower = [
        {**op, "us": on["us"] * (1.10 if "PF32" in on["name"] else 1)} for op, on in zip(OFF, ON, strict=True)
    ]
    rows = compare(arm("off", slower), arm("on", ON))
    assert rows[rows["level"] == "model"]["verdict"].item() == "faster"
    noisy = compare(arm("off", slower), arm("on", ON), noise_floor=1.25)
    model = noisy[noisy["level"] == "model"].iloc[0]
    assert model["verdict"] == "too small to count"
    assert model["noise_floor"] == model["aa_noise_floor"] == 1.25
    assert model["speedup"] == pytest.approx(1.09, rel=0.01), "the estimate itself is unchanged"


def test_p_values_are_adjusted_within_a_level_and_every_timed_row_has_one():
    rows = compare(arm("off", OFF), arm("on", OFF))
    operators = rows[rows["level"] == "operator"]
    timed = operators[operators["p_value"].notna()]
    assert (timed["p_adjusted"] >= timed["p_value"]).all()
    assert rows[rows["level"] == "model"]["minimal_detectable_effect"].notna().all()


def biased(
    factor: float, count: int = 3, **differing: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both arms with operators of one kernel that take longer with SME2 off."""
    softmax = operator(0, "Softmax (NC, F32) #1", 90, category="Elementwise")
    same = [{**softmax, "position": 3.0 + i, **differing} for i in range(count)]
    return [*OFF, *({**op, "us": 90 * factor} for op in same)], [*ON, *same]


def test_a_bias_beyond_the_floor_vetoes_every_verdict_and_one_below_raises_the_floor():
    off, on = biased(1.2)
    rows = compare(arm("off", off), arm("on", on))
    assert (rows[rows["a_ns"].notna()]["verdict"] == "not comparable").all()
    assert at(rows, "model")["placebo_low"] > 1.1
    lenient = at(compare(arm("off", off), arm("on", on), noise_floor=1.3), "model")
    assert lenient["verdict"] == "faster"
    off, on = biased(1.015)
    model = at(compare(arm("off", off), arm("on", on)), "model")
    assert model["verdict"] == "faster"
    assert model["noise_floor"] == pytest.approx(model["placebo_ratio"])
    assert pd.isna(model["aa_noise_floor"])


@pytest.mark.parametrize(
    "differing",
    [
        {"name": "Convert (NC, F32, QP8) #1"},
        {"name": "Pack LH (X32) #1"},
        {"on_sme_unit": "on"},
        {"on_sme_unit": "unknown"},
        {"backend": "other delegate"},
        {"known": False},
        {"certain_sme_samples": 1},
    ],
)
def test_what_may_run_another_kernel_is_no_placebo(differing):
    off, on = biased(1.2, **differing)
    rows = compare(arm("off", off), arm("on", on))
    assert at(rows, "model")["placebo_operators"] == 1, "the transpose"
    assert at(rows, "model")["verdict"] == "faster"


def test_the_scatter_of_many_placebos_is_the_floor_of_operators():
    off, on = biased(1.0, count=12)
    for i, row in enumerate(off[3:]):
        row["us"] = 90 * (1.03 if i == 0 else 1.04 if i % 2 else 1 / 1.04)
    rows = compare(arm("off", off), arm("on", on))
    assert at(rows, "model")["placebo_scatter"] == pytest.approx(1.04)
    assert (rows[rows["level"] == "operator"]["noise_floor"] == at(rows, "model")["placebo_scatter"]).all()
    assert at(rows, "model")["noise_floor"] < 1.02
    assert at(rows, "operator", position=3)["verdict"] == "too small to count"


def test_placebos_are_only_of_sme2_hardware_pairs():
    off, on = biased(1.2)
    for differing in ({"experiment": "aa"}, {"fidelity": "emulated"}):
        rows = compare(arm("off", off, **differing), arm("on", on, **differing))
        assert rows["placebo_ratio"].isna().all()


def test_the_smallest_effect_that_shows_has_the_noise_floor_in_it():
    model = at(compare(arm("off", OFF), arm("on", ON), noise_floor=1.124), "model")
    assert model["minimal_detectable_effect"] >= 1.124


def test_a_slow_mode_of_identical_arms_stays_in_the_noise_they_are_measured_for():
    same = {"experiment": "aa"}
    slow = arm("off", OFF, arm="b", **same)
    slow.latency_rounds.loc[[1, 4], "median_ns"] *= 1.5
    model = at(compare(arm("off", OFF, arm="a", **same), slow), "model")
    assert (model["factor"], model["a_value"], model["b_value"]) == (None, None, None)
    assert (model["slow_rounds_a"], model["slow_rounds_b"]) == (0, 2)
    assert model["speedup"] < 1
