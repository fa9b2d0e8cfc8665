"""Warm-up that ends when the times are steady, and times that are slowed on purpose."""

from __future__ import annotations

import random
import statistics
import subprocess
from collections.abc import Callable, Sequence

import pytest

from sme2_assets.evidence.result import LEAST_STEADY_WARMUP
from sme2_assets.runner.build import NATIVE_DIR, find_compiler

from .test_runs import traced_inferences

WINDOW = 5

# Reads a series per line, prints the index at which the runner's warm-up would end, or -1.
DRIVER = """
#include "steady.h"
#include <iostream>
#include <sstream>
#include <string>

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream numbers(line);
    std::vector<int64_t> series;
    bool steady = false;
    for (int64_t value = 0; !steady && numbers >> value;) {
      series.push_back(value);
      steady = sme2::ends_steady(series);
    }
    std::cout << (steady ? static_cast<int>(series.size()) : -1) << "\\n";
  }
}
"""


def steady_from(series: Sequence[int]) -> int | None:
    """The rule in exact arithmetic, to hold the runner against."""
    for end in range(2 * WINDOW, len(series) + 1):
        first = statistics.median(series[end - 2 * WINDOW : end - WINDOW])
        second = statistics.median(series[end - WINDOW : end])
        if 50 * abs(first - second) <= min(first, second):
            return end
    return None


@pytest.fixture(scope="module")
def runners_rule(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[list[int]]], list[int | None]]:
    """The runner's own source of the rule, compiled into a program that answers for any series."""
    folder = tmp_path_factory.mktemp("rule")
    (folder / "driver.cpp").write_text(DRIVER)
    source = NATIVE_DIR / "src"
    subprocess.run(
        [
            *find_compiler(),
            *("-std=c++17", "-I", str(source), str(folder / "driver.cpp"), str(source / "steady.cpp")),
            *("-o", str(folder / "rule")),
        ],
        check=True,
    )

    def ask(all_series: list[list[int]]) -> list[int | None]:
        lines = "".join(" ".join(map(str, series)) + "\n" for series in all_series)
        answer = subprocess.run(
            [str(folder / "rule")], input=lines, capture_output=True, text=True, check=True
        ).stdout
        return [None if word == "-1" else int(word) for word in answer.split()]

    return ask


def made_up_series() -> list[list[int]]:
    """Noise, drifts and outliers of many sizes, and the edges of the 2 %."""
    draw = random.Random(3)
    noisy = []
    for _ in range(600):
        length, spread, drift = draw.randrange(40), draw.uniform(0, 0.5), draw.uniform(0.9, 1.1)
        level = 10 ** draw.uniform(1, 9)
        noisy.append([1 + int(level * drift**i * draw.uniform(1, 1 + spread)) for i in range(length)])
    edges = [
        [small] * WINDOW + [small + small // 50 + more] * WINDOW
        for small in (1, 49, 50, 51, 99, 100, 1050, 350_000, 123_456_789)
        for more in (-1, 0, 1)
        if small + small // 50 + more > 0
    ]
    return [*noisy, *edges, *(series[::-1] for series in edges)]


def test_the_runner_follows_the_rule_on_any_series(runners_rule):
    series = made_up_series()
    expected = [steady_from(one) for one in series]
    # Both answers must be among them, or the comparison would show little.
    assert sum(end is None for end in expected) > 50
    assert sum(end is not None for end in expected) > 50
    assert runners_rule(series) == expected


@pytest.mark.parametrize("kind", ["latency", "etdump"])
@pytest.mark.parametrize("warmup", [0, 3, 30])
def test_warm_up_ends_where_the_rule_says(runner, programs, kind, warmup):
    program = programs("two_inputs")
    cap = 2000
    run = runner.run(program.pte, program.inputs, kind=kind, warmup=warmup, warmup_cap=cap, iterations=4)
    result = run.result
    end = steady_from(result.warmup_ns)
    # The probability that 2000 inferences hold no two windows alike is nil, however loud the machine.
    assert end is not None
    assert result.steady is True
    assert result.warmup_iterations == len(result.warmup_ns) == max(warmup, end)
    assert len(result.iteration_ns) == 4
    if kind == "etdump":
        assert traced_inferences(runner.folder / "trace.etdump") == result.warmup_iterations + 4


@pytest.mark.parametrize("kind", ["latency", "etdump"])
def test_a_warm_up_that_reaches_its_cap_is_not_called_steady(runner, programs, kind):
    """A cap below two windows can never show steadiness, so the outcome does not depend on the machine."""
    program = programs("two_inputs")
    cap = 2 * WINDOW - 1
    run = runner.run(program.pte, program.inputs, kind=kind, warmup=2, warmup_cap=cap, iterations=3)
    assert run.result.steady is False
    assert run.result.warmup_iterations == len(run.result.warmup_ns) == cap
    assert "not steady" in run.stdout
    if kind == "etdump":
        assert traced_inferences(runner.folder / "trace.etdump") == cap + 3


def test_a_cap_equal_to_the_warm_up_is_a_fixed_warm_up(runner, programs):
    program = programs("two_inputs")
    result = runner.run(program.pte, program.inputs, warmup=12, warmup_cap=12).result
    assert (result.steady, result.warmup_iterations) == (None, 12)


def test_the_reader_knows_the_runner_s_window():
    header = (NATIVE_DIR / "src" / "steady.h").read_text()
    assert f"kSteadyWindow = {WINDOW};" in header
    assert 2 * WINDOW == LEAST_STEADY_WARMUP


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["latency", "etdump"])
def test_a_slowdown_is_told_and_slows(runner, programs, kind):
    program = programs("two_inputs")
    options = {"kind": kind, "warmup": 10, "iterations": 200}
    plain = runner.run(program.pte, program.inputs, **options).result
    slowed = runner.run(program.pte, program.inputs, slowdown_percent=400, **options)
    assert slowed.result.slowdown_percent == 400
    assert "SLOWED ON PURPOSE" in slowed.stderr
    assert "400 %" in slowed.stderr
    assert "slowed on purpose" in slowed.stdout
    if kind == "etdump":
        assert traced_inferences(runner.folder / "trace.etdump") == 210
    assert statistics.median(slowed.result.iteration_ns) > statistics.median(plain.iteration_ns)


def test_a_slowdown_changes_no_output(runner, programs):
    program = programs("two_inputs")
    plain = runner.run(program.pte, program.inputs).output(0)
    slowed = runner.run(program.pte, program.inputs, slowdown_percent="2.5")
    assert slowed.result.slowdown_percent == 2.5
    assert (slowed.output(0) == plain).all()


def test_no_slowdown_is_no_warning(runner, programs):
    program = programs("two_inputs")
    run = runner.run(program.pte, program.inputs, slowdown_percent=0)
    assert run.result.slowdown_percent == 0
    assert "SLOWED" not in run.stderr


def test_the_help_names_the_new_flags(runner):
    text = runner.call("--help").stdout
    assert "--warmup-cap C" in text
    assert "--slowdown-percent P" in text
