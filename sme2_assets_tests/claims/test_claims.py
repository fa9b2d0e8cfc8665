"""No sentence is printed whose predicate does not hold, whatever is in the warehouse."""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sme2_assets.analysis.insights
import sme2_assets.report
from sme2_assets.analysis.claims import Claim, heard
from sme2_assets.report.claims import INTERVAL
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.claims.zoo import ZOO, Calls, false_sentences, random_warehouse, sentences, zoo
from sme2_assets_tests.made.run_folder import ingest
from sme2_assets_tests.made.traces import Delegate
from sme2_assets_tests.warehouse.made_operators import Op
from sme2_assets_tests.warehouse.newest import compare_newest

__all__ = ["zoo"]

# What makes the most sentences, and repeats them.
MANY_SENTENCES = {
    "pairs_that_prove_little",
    "pairs_of_a_small_difference",
    "pairs_that_branch",
    "operators_that_nobody_knows",
    "pairs_of_which_little_was_watched",
    "a_pair_that_contradicts_itself",
    "series_of_a_device_that_became_slower",
    "precisions_of_a_model_that_became_slower",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in MANY_SENTENCES)) for name in ZOO]
)
def test_every_sentence_holds(name: str, zoo: Callable[[str], Warehouse]):
    warehouse = zoo(name)
    said = sentences(warehouse)
    assert said
    assert false_sentences(warehouse, said) == []


def test_a_false_sentence_is_found(zoo: Callable[[str], Warehouse], monkeypatch: pytest.MonkeyPatch):
    """The predicates can fail: one more than there are, one tenth less than it took."""
    from sme2_assets.analysis.insights import shift

    warehouse = zoo("pairs_whose_passes_or_kernels_tell_nothing")
    monkeypatch.setattr(shift, "ms", lambda ns: 0.9 * ns / 1e6)
    assert any(
        "The inference with tracer" in each for each in false_sentences(warehouse, sentences(warehouse))
    )


def test_an_interval_of_equal_rounds_holds_to_the_last_digit(tmp_path: Path):
    """All rounds have one ratio, and logarithms there and back miss it by a digit."""
    warehouse = Warehouse(tmp_path / "warehouse")
    for sme2, ns in (("off", 1_234_000), ("on", 777_000)):
        run = Calls(sme2=sme2, calls=(Delegate([("Softmax (NC, F32) #1", ns)], ns + 321),), sampled=False)
        ingest(warehouse, run.write(tmp_path / "runs"))
    warehouse.publish()
    compare_newest(warehouse, run.variant, run.platform)
    warehouse.publish()
    [row] = warehouse.query("FROM comparisons WHERE level = 'model'").to_dict("records")
    ratio = row["a_ns"] / row["b_ns"]

    def holds(low: float, high: float, shown: str) -> bool:
        values = {"session_id": row["session_id"], "low": low, "high": high, "shown": shown}
        return bool(warehouse.query(INTERVAL.holds, values).iloc[0, 0])

    assert holds(ratio + 1e-15, ratio + 1e-15, f"{ratio:.3f} to {ratio:.3f}")
    assert false_sentences(warehouse, sentences(warehouse)) == []
    assert not holds(ratio + 0.001, ratio + 0.002, f"{ratio + 0.001:.3f} to {ratio + 0.002:.3f}")
    assert holds(1.0001, ratio, f"1.0001 to {ratio:.3f}")
    assert not holds(1.0001, ratio, f"1.000 to {ratio:.3f}"), "which does not lie above 1 in print"


def test_a_claim_needs_all_that_its_predicate_asks_for():
    claim = Claim("{count} operators", "SELECT count(*) = $count FROM operators WHERE run_id = $run_id")
    with pytest.raises(TypeError, match="lacks run_id"):
        claim.say(count=3)
    with heard() as said:
        assert claim.say(count=3, run_id="r") == "3 operators"
    claim.say(count=4, run_id="r")
    assert [each.values for each in said] == [{"count": 3, "run_id": "r"}]


NAMES = (
    "Fully Connected (NC, F32) GEMM #1",
    "Fully Connected (NC, PF32) GEMM #1",
    "Fully Connected (NC, QP8, F32, QC4W) GEMM #1",
    "Convolution (NHWC, PQS8, QC8W) IGEMM #1",
    "Convolution (NHWC, F16) DWConv #1",
    "Transpose (ND, X32) #1",
    "Softmax (NC, F32) #1",
)
samples = st.integers(0, 60)
operators = st.lists(
    st.one_of(
        st.builds(
            lambda name, us, all_of, sme: Op(name, us, 0, {}, max(all_of, sme), sme),
            st.sampled_from(NAMES),
            st.integers(1, 900),
            samples,
            samples,
        ),
        st.builds(lambda us: Op("native_call_mm.out", us, None), st.integers(1, 900)),
    ),
    min_size=1,
    max_size=6,
)


# The same examples each time: what is found belongs to the change that made it.
@pytest.mark.thorough
@settings(max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    operators, st.sampled_from(["hardware", "emulated", "reference"]), st.sampled_from(["off", "on", "both"])
)
def test_every_sentence_holds_of_random_operators(ops: list[Op], fidelity: str, arms: str):
    with tempfile.TemporaryDirectory() as folder:
        warehouse = random_warehouse(Path(folder), ops, fidelity, arms)
        assert false_sentences(warehouse, sentences(warehouse)) == []


# What is no sentence about a measurement: the record of a night, which is about Dagster's runs; what the
# marks of a picture mean; and markup.
OTHER_WORDS = ("claims.py", "night.py", "glance.py", "html.py")
# What a value is called, and not what was found: titles, and the parts of a claim's values.
MOST_WORDS = 4


@pytest.mark.parametrize(
    "path",
    [
        path
        for room in (sme2_assets.analysis.insights, sme2_assets.report)
        for path in sorted(Path(room.__file__).parent.rglob("*.py"))
        if path.name not in OTHER_WORDS
    ],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_no_sentence_with_a_value_stands_outside_a_claim(path: Path):
    tree = ast.parse(path.read_text())
    refusals = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in refusals:
            words = " ".join(part.value for part in node.values if isinstance(part, ast.Constant))
            sentence = len(re.findall(r"[A-Za-z]{2,}", words)) > MOST_WORDS
            # Queries, pictures, and the expressions that Vega computes with.
            query = re.search(r"\b(SELECT|FROM|svg|data:image|datum)\b", words)
            assert query or not sentence, f"line {node.lineno}: {ast.unparse(node)}"


def test_no_number_of_an_insight_stands_outside_a_claim():
    """A number in a sentence is the value of a template with a predicate, and stands in no other place."""
    room = Path(sme2_assets.analysis.insights.__file__).parent
    for path in room.glob("*.py"):
        if path.name == "claims.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FormattedValue):
                number = node.format_spec is not None or isinstance(node.value, ast.Call)
                assert not number or path.name in ("values.py", "insight.py"), f"{path.name}:{node.lineno}"
