"""Warm-up and timed part by the clock and by inferences, and times that are slowed on purpose."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
from collections.abc import Callable, Sequence

import pytest

from sme2_assets.analysis.statistics import Speedup, paired_speedup
from sme2_assets.evidence.result import LEAST_STEADY_WARMUP, RunnerResult
from sme2_assets.profiling.plan import Plan, plan_for
from sme2_assets.runner.build import NATIVE_DIR, find_compiler

from .test_runs import traced_inferences

WINDOW = 5

# Two questions, one per line. `steady` and a series: whether a warm-up of these times ended steady.
# `lengths`, the runner's limits (least warm-ups, their least ns, least timed, most timed, their least ns) and
# the times of one inference after the other: how many are warm-up, how many are timed.
DRIVER = """
#include "steady.h"
#include "stretch.h"
#include <iostream>
#include <sstream>
#include <string>

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string question;
    words >> question;
    sme2::Stretch warmup = {0, UINT32_MAX, 0}, timed = {};
    if (question == "lengths") {
      words >> warmup.least >> warmup.least_ns >> timed.least >> timed.most >> timed.least_ns;
    }
    std::vector<int64_t> series;
    for (int64_t value = 0; words >> value;) {
      series.push_back(value);
    }
    if (question == "steady") {
      std::cout << sme2::ends_steady(series) << "\\n";
      continue;
    }
    int64_t clock_ns = 0;
    size_t made = 0;
    for (const sme2::Stretch& stretch : {warmup, timed}) {
      const size_t before = made;
      sme2::run_stretch(stretch, [&] { return clock_ns; }, [&] { clock_ns += series.at(made++); }, [] {});
      std::cout << made - before << " ";
    }
    std::cout << "\\n";
  }
}
"""

Ask = Callable[[list[str]], list[str]]


def is_steady(series: Sequence[int]) -> bool:
    """The rule in exact arithmetic, to hold the runner against."""
    window = max(WINDOW, len(series) // 4)
    if len(series) < 2 * window:
        return False
    first, second = (sorted(part)[window // 2] for part in (series[-2 * window : -window], series[-window:]))
    return 50 * abs(first - second) <= min(first, second)


@pytest.fixture(scope="module")
def runners_rule(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """The runner's own source of the rules, compiled into a program that answers questions."""
    folder = tmp_path_factory.mktemp("rule")
    (folder / "driver.cpp").write_text(DRIVER)
    source = NATIVE_DIR / "src"
    parts = [str(source / name) for name in ("steady.cpp", "stretch.cpp")]
    subprocess.run(
        [
            *find_compiler(),
            *(
                "-std=c++17",
                "-I",
                str(source),
                str(folder / "driver.cpp"),
                *parts,
                "-o",
                str(folder / "rule"),
            ),
        ],
        check=True,
    )

    def ask(questions: list[str]) -> list[str]:
        answer = subprocess.run(
            [str(folder / "rule")], input="\n".join(questions), capture_output=True, text=True, check=True
        ).stdout
        return answer.splitlines()

    return ask


def made_up_series() -> list[list[int]]:
    """Noise, drifts and outliers of many sizes, and the edges of the 2 %."""
    draw = random.Random(3)
    noisy = []
    for _ in range(600):
        length, spread, drift = draw.randrange(90), draw.uniform(0, 0.2), draw.uniform(0.98, 1.02)
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
    expected = [is_steady(one) for one in series]
    # Both answers must be among them, or the comparison would show little.
    assert 50 < sum(expected) < len(expected) - 50
    answers = runners_rule([f"steady {' '.join(map(str, one))}" for one in series])
    assert [answer == "1" for answer in answers] == expected


# The true factor between the arms of the machine below.
TRUE_SPEEDUP = 4.0
LOWEST_SPEED = 0.2


def inferences_on_a_ramping_clock(
    work_ns: float, ramp_ns: float, lasting_ns: float, draw: random.Random
) -> list[int]:
    """Times of one inference after the other, where the clock rises to its full speed over `ramp_ns`."""
    times: list[int] = []
    clock_ns = 0
    while clock_ns < lasting_ns or len(times) < 50:
        speed = min(1.0, LOWEST_SPEED + (1 - LOWEST_SPEED) * clock_ns / ramp_ns)
        times.append(max(1, round(work_ns / speed * math.exp(draw.gauss(0, 0.01)))))
        clock_ns += times[-1]
    return times


def measured_speedup(runners_rule: Ask, plan: Plan, work_ns: float, ramp_ns: float) -> Speedup:
    """What a session would print of two such arms: its rounds are as long as plan and runner say."""
    draw = random.Random(f"{work_ns} {ramp_ns}")
    work = {"off": TRUE_SPEEDUP * work_ns, "on": work_ns}
    results: dict[str, list[RunnerResult]] = {"off": [], "on": []}
    medians: dict[str, list[float]] = {"off": [], "on": []}
    for index in range(plan.rounds):
        for arm in ("off", "on") if index % 2 else ("on", "off"):
            lengths = plan.lengths_of("latency", work[arm], plan.pace_of(results.values()))
            lasting_ns = 2e6 * (lengths.warmup_ms + lengths.timed_ms)
            times = inferences_on_a_ramping_clock(work[arm], ramp_ns, lasting_ns, draw)
            limits = (
                *(lengths.warmup, lengths.warmup_ms * 1_000_000),
                *(lengths.iterations, lengths.iterations_cap, lengths.timed_ms * 1_000_000),
            )
            [answer] = runners_rule([f"lengths {' '.join(map(str, (*limits, *times)))}"])
            warmup, timed = map(int, answer.split())
            result = RunnerResult.model_construct(
                pass_kind="latency",
                warmup_iterations=warmup,
                warmup_wall_ns=sum(times[:warmup]),
                iterations=timed,
                timed_wall_ns=sum(times[warmup : warmup + timed]),
            )
            assert lengths.fit(result)
            results[arm].append(result)
            medians[arm].append(statistics.median(times[warmup : warmup + timed]))
    return paired_speedup(medians["off"], medians["on"])


@pytest.mark.parametrize("ramp_ms", [1, 40, 150, 400, 2000])
@pytest.mark.parametrize("work_ms", [0.05, 0.4, 2, 15])
def test_a_ramping_clock_hides_no_part_of_a_speedup(runners_rule, work_ms, ramp_ms):
    speedup = measured_speedup(runners_rule, plan_for("hardware"), work_ms * 1e6, ramp_ms * 1e6)
    assert speedup.low is not None
    assert speedup.high is not None
    assert speedup.low <= TRUE_SPEEDUP * 1.01
    assert speedup.high >= TRUE_SPEEDUP / 1.01


def test_a_warm_up_by_count_alone_would_hide_half_of_it(runners_rule):
    """The planted fault: ten warm-ups and twenty timed inferences, for as long as they take."""
    by_count = plan_for("hardware", warmup=10, iterations=20)
    speedup = measured_speedup(runners_rule, by_count, 0.4e6, 150e6)
    assert speedup.high is not None
    assert speedup.high < 0.6 * TRUE_SPEEDUP


@pytest.mark.parametrize("kind", ["latency", "etdump"])
@pytest.mark.parametrize("warmup", [0, 3, 30])
def test_warm_up_and_timed_part_last_for_a_time_and_a_number(runner, programs, kind, warmup):
    program = programs("two_inputs")
    result = runner.run(
        program.pte, program.inputs, kind=kind, warmup=warmup, warmup_ms=20, iterations=4, timed_ms=5
    ).result
    assert result.warmup_iterations >= warmup
    assert result.warmup_wall_ns >= 20_000_000
    assert result.timed_wall_ns >= 5_000_000 or result.iterations == 5000
    assert result.iterations >= 4
    assert result.steady in (True, False)
    if result.warmup_stride == 1:
        assert result.steady is is_steady(result.warmup_ns)
    assert sum(result.iteration_ns) <= result.timed_wall_ns
    if kind == "etdump":
        assert traced_inferences(runner.folder / "trace.etdump") == result.iterations


def test_a_cap_ends_the_timed_part(runner, programs):
    program = programs("two_inputs")
    result = runner.run(program.pte, program.inputs, iterations=2, iterations_cap=3, timed_ms=60_000).result
    assert result.iterations == 3


@pytest.mark.parametrize("kind", ["latency", "etdump"])
def test_a_fixed_warm_up_is_not_judged(runner, programs, kind):
    program = programs("two_inputs")
    result = runner.run(program.pte, program.inputs, kind=kind, warmup=12).result
    assert (result.steady, result.warmup_iterations, len(result.warmup_ns)) == (None, 12, 12)


def test_cycles_are_told_of_every_inference_or_not_at_all(runner, programs):
    program = programs("two_inputs")
    result = runner.run(program.pte, program.inputs, iterations=5).result
    assert result.iteration_cycles is None or len(result.iteration_cycles) == 5


def test_the_reader_knows_the_runner_s_window():
    header = (NATIVE_DIR / "src" / "steady.h").read_text()
    assert f"kSteadyWindow = {WINDOW};" in header
    assert 2 * WINDOW == LEAST_STEADY_WARMUP


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
        assert traced_inferences(runner.folder / "trace.etdump") == 200
    # The shortest: no other process makes an inference quicker.
    assert min(slowed.result.iteration_ns) > 2 * min(plain.iteration_ns)


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
