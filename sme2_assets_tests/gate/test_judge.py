"""Two sets of facts of a model: every planted loss is found, and nothing else is called one."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.statistics import MIN_ROUNDS, unpaired_ratio
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.numerics import sqnr_db
from sme2_assets.gate.baseline import Baseline, ModelFacts, Operator, Outside, Times
from sme2_assets.gate.judge import Finding, Tolerances, judge, match, updated
from sme2_assets.gate.sketches import distance_db, sketch_of
from sme2_assets.gate.summary import MARK, summary

AS_IT_IS = Tolerances()


def operator(number: int, **given: object) -> Operator:
    facts = {
        "module": f"layer.{number}",
        "source": f"model.py:{10 + number}",
        "code": f"x = self.layer[{number}](x)",
        "category": "CONV",
        "shape": "1x8x8x16 to 1x8x8x16",
        "kernel": "Convolution (NHWC, PF16) IGEMM",
        "backend": "xnnpack",
        "unit": "on",
        "macs": 1000,
        "instructions": 5000,
        "macs_executed": 1024,
        "macs_on_unit": 1024,
        "outer_products": 4,
        "streaming_entries": 2,
        "packing_instructions": 3000,
    }
    return Operator(**{**facts, **given})  # type: ignore[arg-type]


def facts(*operators: Operator, **given: object) -> ModelFacts:
    values = np.random.default_rng(1).normal(size=(1, 100))
    known: dict[str, object] = {
        "program_bytes": 100_000,
        "delegate_calls": 1,
        "steps": 20,
        "sqnr_db": [60.0],
        "least_db": 30.0,
        "inputs": [sketch_of(values)],
        "outputs": [sketch_of(values * 2)],
        "instructions": 100_000,
        "operators": list(operators),
        "outside": [],
    }
    return ModelFacts(**{**known, **given})  # type: ignore[arg-type]


def losses(before: ModelFacts, after: ModelFacts) -> list[Finding]:
    return [finding for finding in judge(before, after, AS_IT_IS) if finding.kind == "loss"]


operators = st.lists(
    st.builds(
        operator,
        st.integers(0, 5),
        unit=st.sampled_from(["on", "off"]),
        macs=st.one_of(st.none(), st.integers(0, 10**9)),
        category=st.sampled_from(["CONV", "GEMM"]),
        module=st.sampled_from(["", "a", "a.b", "c"]),
        code=st.sampled_from(["", "x = f(x)", "y = g(x)"]),
    ),
    max_size=12,
)


@given(operators)
def test_a_model_that_did_not_change_has_no_findings(some: list[Operator]):
    assert judge(facts(*some), facts(*some), AS_IT_IS) == []


@given(operators, operators)
def test_every_operator_is_in_a_pair_or_in_one_program_alone(some: list[Operator], others: list[Operator]):
    matched = match(some, others)
    assert sorted(map(str, [*(old for old, _ in matched.pairs), *matched.gone])) == sorted(map(str, some))
    assert sorted(map(str, [*(new for _, new in matched.pairs), *matched.added])) == sorted(map(str, others))
    assert all(old.module == new.module for old, new in matched.pairs)


@given(st.integers(0, 9), st.integers(0, 10), st.randoms())
def test_the_operator_that_lost_its_kernel_is_named_wherever_others_went(
    lost: int, inserted: int, shuffle: random.Random
):
    before = [operator(number, macs=100_000) for number in range(10)]
    after = [each.model_copy(update={"source": "model.py:99"}) for each in before]
    after[lost] = after[lost].model_copy(
        update={"unit": "off", "kernel": "Convolution (NHWC, F16) IGEMM", "shape": "1x8x8x15 to 1x8x8x15"}
    )
    after.insert(inserted, operator(77, macs=1))
    shuffle.shuffle(after)
    found = [it for it in losses(facts(*before), facts(*after)) if it.where != "the model"]
    assert [it.where for it in found] == [f"layer.{lost} (model.py:99)"]
    assert "lost its SME2 kernel" in found[0].what


def test_two_operators_of_a_module_are_told_apart_by_their_lines():
    scores = operator(0, module="attention", code="scores = q @ k", category="GEMM")
    mixed = operator(1, module="attention", code="return scores @ v", category="GEMM", unit="off")
    matched = match([scores, mixed], [mixed])
    assert matched.pairs == [(mixed, mixed)]
    assert matched.gone == [scores]
    assert losses(facts(scores, mixed), facts(mixed, scores)) == []


def test_a_convolution_that_became_a_matrix_product_is_the_same_operator():
    before, after = operator(0), operator(0, category="GEMM", shape="64x16 to 64x16")
    assert match([before], [after]).pairs == [(before, after)]


def test_what_left_the_delegate_is_a_loss_whatever_unit_it_had():
    before = operator(0, unit="off", kernel="Convolution (NHWC, F16) DWConv")
    after = operator(0, unit="off", kernel="aten::convolution.out", backend="portable")
    [found] = losses(facts(before), facts(after))
    assert "left the delegate" in found.what


@given(*[st.sampled_from(["on", "off"])] * 2, st.booleans())
def test_what_an_operator_gained_or_lost_is_said_of_its_unit(old: str, new: str, same_kernel: bool):
    kernel = {} if same_kernel else {"kernel": "Convolution (NHWC, F16) IGEMM"}
    before, after = facts(operator(0, unit=old)), facts(operator(0, unit=new, **kernel))
    otherwise = [] if same_kernel else ["note"]
    expected = {("on", "off"): ["loss"], ("off", "on"): ["gain"]}.get((old, new), otherwise)
    assert [each.kind for each in judge(before, after, Tolerances(macs=1))] == expected


def test_a_new_operator_off_the_unit_counts_by_its_work():
    old = [operator(0, macs=1000)]
    small, large = (operator(1, unit="off", macs=macs) for macs in (5, 500))
    assert losses(facts(*old), facts(*old, small)) == []
    [found] = losses(facts(*old), facts(*old, large))
    assert found.where == "the model"
    assert "66.7% of its MACs on the SME unit, 100.0% before" in found.what


def test_operators_outside_the_delegate_are_counted_by_kind_and_module():
    def outside(count: int) -> ModelFacts:
        one = Outside(operator="aten.mean.dim", module="head", reason="keepdim", count=count)
        return facts(outside=[one] if count else [])

    assert losses(outside(1), outside(1)) == []
    [found] = losses(outside(1), outside(3))
    assert (found.where, found.what[:25]) == ("head", "2 more of aten.mean.dim o")
    [gained] = judge(outside(3), outside(0), AS_IT_IS)
    assert gained.kind == "gain"


@given(st.integers(0, 2**32), st.floats(0.001, 1000.0), st.integers(500, 100_000))
def test_the_distance_of_sketches_is_that_of_the_arrays(seed: int, noise: float, size: int):
    random_numbers = np.random.default_rng(seed)
    before = random_numbers.normal(size=size)
    after = before + noise * random_numbers.normal(size=size)
    # 64 squares: 0.8 dB is their standard deviation. Signs are fixed, so the arrays are what varies here.
    assert distance_db(sketch_of(before), sketch_of(after)) == pytest.approx(sqnr_db(before, after), abs=4.5)


def test_a_sketch_is_the_same_for_good():
    """A baseline of today is read in years: by hand, for the first sum of two values."""
    mask = (1 << 64) - 1

    def sign(place: int, bit: int) -> int:
        mixed = ((place + 1) * 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        return 1 if ((mixed ^ (mixed >> 31)) >> bit) & 1 else -1

    values = sketch_of(np.array([3.0, 5.0], dtype=np.float32)).values
    assert values == [3.0 * sign(0, bit) + 5.0 * sign(1, bit) for bit in range(64)]


def test_outputs_that_moved_are_a_loss_and_rounding_is_none():
    values = np.random.default_rng(2).normal(size=(1, 1000))
    before = facts(outputs=[sketch_of(values)])
    assert losses(before, facts(outputs=[sketch_of(values * (1 + 1e-4))])) == []
    [found] = losses(before, facts(outputs=[sketch_of(values * 1.1)]))
    told = re.fullmatch(r"moved: about (\d+) dB from the baseline's, 30 dB needed", found.what)
    assert told
    assert float(told[1]) == pytest.approx(20, abs=3)
    [shape] = losses(before, facts(outputs=[sketch_of(values.reshape(10, 100))]))
    assert "was float64 1x1000" in shape.what


def test_integers_are_compared_one_by_one():
    tokens = np.arange(5000).reshape(50, 100)
    before = facts(outputs=[sketch_of(tokens)])
    assert losses(before, facts(outputs=[sketch_of(tokens.copy())])) == []
    assert losses(before, facts(outputs=[sketch_of(tokens + 1)]))


def test_outputs_of_other_inputs_are_not_compared():
    other = np.random.default_rng(3).normal(size=(1, 100))
    found = judge(facts(), facts(inputs=[sketch_of(other)], outputs=[sketch_of(other)]), AS_IT_IS)
    assert [(each.kind, each.where) for each in found] == [("note", "inputs")]


def timed(rounds_ns: list[float], device: str = "one", fidelity: str = "hardware") -> ModelFacts:
    known = {"platform": "linux", "asked": "", "sme2": "off", "threads": 1, "cpus": ""}
    return facts(times=[Times(**known, device=device, fidelity=fidelity, rounds_ns=rounds_ns)])  # type: ignore[arg-type]


def test_times_of_another_instruction_set_say_nothing_of_sme2():
    steady = [100.0 + each for each in range(10)]
    slower = [2 * each for each in steady]
    [found] = judge(timed(steady, fidelity="reference"), timed(slower, fidelity="reference"), AS_IT_IS)
    assert (found.kind, found.where) == ("loss", "one")
    assert "SME" not in found.what
    [native] = judge(timed(steady), timed(slower), AS_IT_IS)
    assert native.where == "one, SME2 off"


def test_only_a_time_that_is_surely_longer_is_a_loss():
    steady = [100.0 + each for each in range(10)]
    assert losses(timed(steady), timed([1.05 * each for each in steady])) == []
    [found] = losses(timed(steady), timed([1.5 * each for each in steady]))
    assert "1.50 times the time before (" in found.what
    wild = [100.0, 200.0] * 5
    [note] = judge(timed(wild), timed([1.1 * each for each in wild]), AS_IT_IS)
    assert (note.kind, note.what[:11]) == ("note", "cannot tell")
    [few] = judge(timed(steady), timed([900.0] * (MIN_ROUNDS - 1)), AS_IT_IS)
    assert (few.kind, "too few rounds" in few.what) == ("note", True)
    [elsewhere] = judge(timed(steady), timed([900.0] * 10, device="other"), AS_IT_IS)
    assert (elsewhere.kind, "not measured" in elsewhere.what) == ("note", True)


@pytest.mark.parametrize(
    ("after", "kind", "ends"), [(110.2, "loss", "(1.102 to 1.102)"), (89.8, "gain", "(0.898 to 0.898)")]
)
def test_the_ends_of_an_interval_are_shown_on_their_side_of_the_limit(after: float, kind: str, ends: str):
    [found] = judge(timed([100.0] * 10), timed([after] * 10), AS_IT_IS)
    assert (found.kind, ends in found.what) == (kind, True)


def test_the_interval_of_two_sessions_covers_the_truth():
    random_numbers = np.random.default_rng(4)
    for n, m in ((6, 6), (10, 10), (10, 30)):
        missed = 0
        for _ in range(500):
            _, low, high = unpaired_ratio(
                random_numbers.lognormal(0, 0.1, n), random_numbers.lognormal(np.log(1.3), 0.1, m)
            )
            missed += not low <= 1.3 <= high
        # 5 % of 500 are 25; more than 45 happen once in ten thousand times.
        assert missed <= 45


def test_a_baseline_is_read_as_it_was_written_and_has_a_line_for_an_operator(tmp_path: Path):
    path = tmp_path / "sme2_gate.json"
    baseline = Baseline(executorch="1.5.1", models={"net-fp16": facts(operator(0), operator(1))})
    baseline.write(path)
    assert Baseline.read(path) == baseline
    assert sum('"module": "layer.' in line and '"unit": "on"' in line for line in path.open()) == 2
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 9'))
    with pytest.raises(Sme2Error, match="version 9 of its format"):
        Baseline.read(path)


def test_small_steps_that_are_recorded_one_by_one_do_not_add_up_to_a_loss():
    """Each is within its tolerance, and is recorded; together they are what the gate is there to find."""
    values = np.random.default_rng(1).normal(size=(1, 100))

    def timed(ns: float) -> list[Times]:
        facts = {"platform": "linux", "asked": "", "device": "d", "fidelity": "hardware", "sme2": "on"}
        rounds = [ns * (1 + 0.001 * number) for number in range(MIN_ROUNDS + 4)]
        return [Times(**facts, threads=1, cpus="", rounds_ns=rounds)]  # type: ignore[arg-type]

    kept = first = facts(operator(0, streaming_entries=2000), times=timed(1000))
    found: set[str] = set()
    for step in range(1, 30):
        now = facts(
            operator(0, instructions=int(5000 * 1.008**step), streaming_entries=int(2000 * 1.008**step)),
            instructions=int(100_000 * 1.008**step),
            program_bytes=int(100_000 * 1.008**step),
            outputs=[sketch_of(values * (2 + 0.02 * step))],
            times=timed(1000 * 1.07**step),
        )
        lost = losses(kept, now)
        found |= {finding.where for finding in lost}
        if not lost:
            kept = updated(kept, now, AS_IT_IS)
    assert found == {"layer.0 (model.py:10)", "the model", "the program", "output 0", "d, SME2 on"}
    assert kept == first


def test_what_was_gained_is_recorded():
    slower = operator(1, instructions=6000, packing_instructions=4000)
    before = facts(operator(0, unit="off"), slower, program_bytes=200_000, instructions=200_000)
    after = facts(operator(0), operator(1), operator(2), program_bytes=100_000)
    assert updated(before, after, AS_IT_IS) == after
    other_inputs = facts(
        operator(0), operator(1), inputs=[sketch_of(np.ones((1, 100)))], outputs=[sketch_of(np.ones(3))]
    )
    assert updated(before, other_inputs, AS_IT_IS) == other_inputs


def test_a_share_is_all_or_nothing_only_if_it_is():
    large, small = operator(0, macs=9_999_999), operator(1, macs=1)
    assert facts(large, small).macs_text() == "100.0%"
    assert facts(large, operator(1, macs=1, unit="off")).macs_text() == "over 99.9%"
    assert facts(operator(0, macs=9_999_999, unit="off"), small).macs_text() == "under 0.1%"


def test_the_summary_says_what_was_lost_and_obeys_no_name():
    hostile = operator(0, module="a|b <script> `x`\n# y", unit="off")
    before, after = facts(operator(0, module=hostile.module)), facts(hostile)
    text = summary({"net-fp16": judge(before, after, AS_IT_IS)}, {"net-fp16": before}, {"net-fp16": after})
    assert text.startswith(f"{MARK}\n## SME2 gate: lost something in net-fp16\n")
    assert "1 of 1 → 0 of 1" in text
    assert "<script>" not in text
    assert all(row.count("|") - row.count("\\|") in (4, 7) for row in text.splitlines() if row[:1] == "|")
    calm = summary({"net-fp16": []}, {"net-fp16": before}, {"net-fp16": before})
    assert "nothing was lost" in calm
    assert "gate record" not in calm


def test_what_records_a_loss_names_the_file_and_the_place_of_the_times():
    times = Times(
        platform="android",
        asked="label:big cores",
        device="d",
        fidelity="hardware",
        sme2="on",
        threads=2,
        cpus="",
        rounds_ns=[1.0],
    )
    before, after = facts(operator(0), times=[times]), facts(operator(0, unit="off"))
    found, of = {"net-fp16": judge(before, after, AS_IT_IS)}, ({"net-fp16": before}, {"net-fp16": after})
    told = summary(found, *of, Path("ci/base.json"))
    place = "--times android --device 'label:big cores' --threads 2"
    assert f"`sme2 gate record net-fp16 --baseline ci/base.json {place}`" in told
    assert f"`sme2 gate record net-fp16 {place}`" in summary(found, *of)
