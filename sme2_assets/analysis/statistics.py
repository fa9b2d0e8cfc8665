"""Every statistic of a comparison, each with what it can and cannot show.

The observation is the median of one process; the unit is the round, in which both arms ran. So n is
the number of rounds, however many inferences each had. An unknown value is None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are loaded on first use: most commands compute no statistic

from sme2_assets.evidence.digits import beside, interval_beside

Floats = npt.NDArray[np.float64]

# With five paired rounds even the most extreme outcome has p = 2 / 2^5 = 6 %: nothing can be shown.
MIN_ROUNDS = 6
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
POWER = 0.80
# A difference smaller than this is of no practical interest, however certain.
PRACTICAL_RATIO = 1.02
# With fewer A/A sessions their largest deviation says little about the next one (see `noise_floor`).
MIN_AA_SESSIONS = 10
# A ratio that a clock leaves open by a larger factor has no estimate, only bounds.
MOST_RESOLUTION = 1.25
# When slow rounds count as a mode of their own (see `slow_rounds`).
SLOW_SHARE, SLOW_RATIO, SLOW_GAP = 0.25, 1.05, 4.0

# The score of a lag-1 autocorrelation that one in twenty sessions exceeds by chance; the largest estimate.
_ALIKE, _MOST_ALIKE = 1.645, 0.8

# Fixed, so that the same rounds always give the same interval, and swapped arms its reciprocal.
_SEED = 20_240_229
_RESAMPLES = 1999
# Beyond this many rounds the bootstrap only costs time and memory, and the rank sums are close to normal.
_LARGE_N = 100


@dataclass(frozen=True)
class Speedup:
    """a / b with its 95 % interval and the p-value of "no difference".

    `low`, `high` and `p_value` are None when there are too few rounds (n). Where a clock floors, `bounds`
    enclose the ratio that exact times would have given, whatever was hidden; `ratio` is their middle, and the
    interval and the p-value are those of the worst case. `bounds` is None if the times are exact.

    `widened` is the factor by which the interval is wider because successive rounds are alike.
    """

    ratio: float
    low: float | None
    high: float | None
    n: int
    p_value: float | None
    bounds: tuple[float, float] | None = None
    widened: float = 1.0

    @property
    def resolution(self) -> float:
        """The factor by which the clock alone leaves the ratio open; 1 for exact times."""
        return 1.0 if self.bounds is None else self.bounds[1] / self.bounds[0]

    @property
    def nearest(self) -> float:
        """The value nearest to 1 that the ratio may have."""
        least, most = self.bounds or (self.ratio, self.ratio)
        return min(max(1.0, least), most)


@dataclass(frozen=True)
class Times:
    """One time per round, between `least_ns` and `most_ns`; these are equal for an exact clock."""

    least_ns: Floats
    most_ns: Floats


def paired_speedup(a_ns: Sequence[float], b_ns: Sequence[float]) -> Speedup:
    """The speedup over paired rounds: Hodges-Lehmann estimate on log times, interval, rank test.

    With d = log(a) - log(b) for each round, the ratio is exp(median of all averages of two d).

    The interval is a bootstrap over rounds: the percentile interval, with tails widened for small n as
    Hesterberg proposes, alpha'/2 = Phi(-sqrt(n / (n - 1)) * t(0.975, n - 1)), and never narrower than the
    exact rank interval. The plain percentile and BCa intervals miss 1 in 13 % of A/A comparisons of 6
    rounds, the basic one in up to 17 %, the widened one alone in 6 %; with the rank interval as a floor it
    is at most 5 % for every n, because the signed-rank test is exact.

    The p-value is that of the signed-rank test, exact even with ties.

    Robust against a few disturbed rounds, and symmetric: swapping the arms gives the reciprocal. It assumes
    that, if the arms were equal, a round would favour either equally, and that rounds are independent: where
    successive ones are seen to be alike, the interval is widened (see `_widening`). It cannot
    see a bias that all rounds share, such as a machine that throttles whenever one arm runs.
    """
    return bounded_speedup(exactly(a_ns), exactly(b_ns))


def unpaired_ratio(
    before_ns: Sequence[float], after_ns: Sequence[float]
) -> tuple[float, float | None, float | None]:
    """The time after over the time before, for two sessions with unrelated rounds.

    Hodges and Lehmann's estimate, the median of all differences of log times, with the interval that belongs
    to the rank-sum test (Moses), by its normal approximation; none below MIN_ROUNDS. It covers the scatter of
    rounds within a session, but nothing that all rounds of one session share: decisions based on it must
    leave room for that.
    """
    before, after = np.log(_positive(before_ns)), np.log(_positive(after_ns))
    differences = np.sort(np.subtract.outer(after, before), axis=None)
    ratio = math.exp(float(np.median(differences)))
    m, n = len(before), len(after)
    if min(m, n) < MIN_ROUNDS:
        return ratio, None, None
    deviation = math.sqrt(m * n * (m + n + 1) / 12)
    cut = max(0, math.floor(m * n / 2 - scipy.stats.norm.ppf((1 + CONFIDENCE) / 2) * deviation))
    return ratio, math.exp(float(differences[cut])), math.exp(float(differences[-1 - cut]))


def exactly(times_ns: Sequence[float] | Floats) -> Times:
    """Times of an exact clock."""
    times = np.asarray(times_ns, dtype=float)
    return Times(times, times)


def bounded_speedup(a: Times, b: Times, *, interval: bool = True) -> Speedup:
    """The speedup for times that are only known to lie between two bounds.

    The estimate and both ends of the interval grow with every d. So their values for the smallest and the
    largest d that the times allow enclose those of the exact times, however the hidden parts are spread:
    nothing is assumed about them, and the interval covers at least as often as with exact times. That goes
    for independent rounds: the clock may also hide that successive ones are alike. Without `interval` there
    is only the estimate, which takes a hundredth of the time.
    """
    lowest, highest = _log_ratios(a.least_ns, b.most_ns), _log_ratios(a.most_ns, b.least_ns)
    if (lowest > highest).any():
        raise ValueError("a lower bound of a time is above its upper bound")
    exact = bool((lowest == highest).all())
    below = _estimated(lowest, interval)
    above = below if exact else _estimated(highest, interval)
    bounds = None if exact else (math.exp(below.estimate), math.exp(above.estimate))
    n = len(lowest)
    ratio = math.exp((below.estimate + above.estimate) / 2)
    if below.low is None or above.high is None:
        return Speedup(ratio, None, None, n, None, bounds)
    # Whether the rank sum is above or below its middle: if the clock leaves that open, nothing is shown.
    told = exact or below.estimate > 0 or above.estimate < 0
    p_value = max(below.p_value, above.p_value) if told else 1.0
    widened = max(below.widened, above.widened)
    return Speedup(ratio, math.exp(below.low), math.exp(above.high), n, p_value, bounds, widened)


class _Estimate(NamedTuple):
    """For log ratios; None where there are too few."""

    estimate: float
    low: float | None = None
    high: float | None = None
    p_value: float = 1.0
    widened: float = 1.0


def _estimated(differences: Floats, interval: bool) -> _Estimate:
    n = len(differences)
    averages = np.sort(_walsh_averages(differences))
    estimate = float(np.median(averages))
    if n < MIN_ROUNDS or not interval:
        return _Estimate(estimate)
    cut = _signed_rank_cut(n)
    low, high = float(averages[cut]), float(averages[-1 - cut])
    if n <= _LARGE_N:
        bootstrap_low, bootstrap_high = _bootstrap_interval(differences)
        low, high = min(low, bootstrap_low), max(high, bootstrap_high)
    widened = _widening(differences)
    low, high = (estimate + widened * (end - estimate) for end in (low, high))
    return _Estimate(estimate, low, high, _signed_rank_p(differences), widened)


def _widening(differences: Floats) -> float:
    """How many times as wide the interval must be for rounds of which successive ones are alike; else 1.

    A mean of values with lag-1 autocorrelation r scatters sqrt((1 + r) / (1 - r)) times as much as one of
    independent values. An estimate of r that one in twenty sessions of independent rounds exceeds counts as
    seen; it is corrected for its bias (Kendall's), and beyond 0.8 nothing is estimated. With r = 0.7, an
    interval covers 71 % for 10 rounds and 87 % for 20 or more, where it would cover 60 %: few rounds do not
    show what they have in common.
    """
    n = len(differences)
    centred = differences - differences.mean()
    power = float(np.square(centred).sum())
    # What is left of equal ratios is rounding.
    if power < n * 1e-24:
        return 1.0
    autocorrelation = float((centred[1:] * centred[:-1]).sum()) / power
    if (autocorrelation + 1 / n) * math.sqrt(n) <= _ALIKE:
        return 1.0
    corrected = min((autocorrelation + 1 / n) / (1 - 3 / n), _MOST_ALIKE)
    return math.sqrt((1 + corrected) / (1 - corrected))


def speedup_verdict(
    speedup: Speedup,
    *,
    noise_floor: float | None = None,
    adjusted_p: float | None = None,
    subject: str = "SME2 on is",
) -> tuple[str, str]:
    """`faster`, `slower`, `no difference`, `too small to count` or `insufficient data`, and why.

    `subject` is what the second arm is called, with its verb.

    `faster` and `slower` need all three: the interval excludes 1, p is at most 5 % (`adjusted_p` instead of
    the p-value where many things are compared at once, see `adjusted_p_values`), and the ratio, whatever the
    clock hides, is at least as far from 1 as the larger of PRACTICAL_RATIO and `noise_floor` (a ratio of at
    least 1: how much identical arms have differed on this platform, see `noise_floor`).

    `no difference` means that a difference beyond that threshold is ruled out, not that none was found. With
    a high noise floor it rules out little: the reason names the threshold. If the interval excludes 1 as
    well, the difference is `too small to count`. Where nothing can be shown, the data are insufficient, which
    says nothing about the arms.
    """
    if noise_floor is not None and not 1 <= noise_floor < math.inf:
        raise ValueError(f"a noise floor is a ratio of at least 1, not {noise_floor}")
    if speedup.low is None or speedup.high is None:
        return (
            "insufficient data",
            f"{speedup.n} paired rounds; at least {MIN_ROUNDS} are needed for a 95 % interval.",
        )
    ends = interval_beside(speedup.low, speedup.high, 1, 3)
    interval = f"the 95 % interval {ends} over {speedup.n} paired rounds"
    # Said at the end of each reason.
    alike = (
        f" Successive rounds are alike, so the interval is {speedup.widened:.1f} times as wide."
        if speedup.widened > 1
        else ""
    )
    threshold = threshold_of(noise_floor)
    limit = f"{threshold - 1:.1%}" + ("" if threshold == PRACTICAL_RATIO else " (the noise floor)")
    failed = _why_no_difference_is_shown(speedup, threshold, limit, adjusted_p)
    side = "above" if speedup.ratio > 1 else "below"
    if not failed:
        p = _effective_p(speedup, adjusted_p)
        verdict = "faster" if speedup.ratio > 1 else "slower"
        return (
            verdict,
            f"{subject} {verdict}: {interval} lies {side} 1, p = {p:.2g}, "
            f"the difference is beyond {limit}.{alike}",
        )
    if speedup.low >= 1 / threshold and speedup.high <= threshold:
        if speedup.low <= 1 <= speedup.high:
            return "no difference", f"{interval} rules out a difference of more than {limit}.{alike}"
        small = (
            "it is of no practical interest"
            if threshold == PRACTICAL_RATIO
            else "identical arms differ by as much"
        )
        return "too small to count", f"{interval} lies {side} 1, but within {limit}: {small}.{alike}"
    return (
        "insufficient data",
        f"{interval} does not rule out a difference of {limit}, nor is one shown: "
        f"{'; '.join(failed)}. {_remedy(speedup, threshold)}{alike}",
    )


def _remedy(speedup: Speedup, threshold: float) -> str:
    least, most = speedup.bounds or (speedup.ratio, speedup.ratio)
    if speedup.resolution > threshold or least < 1 < most:
        return (
            f"XNNPACK's whole microseconds alone leave the ratio between {least:.2f} and {most:.2f}: "
            "more rounds do not help."
        )
    return "Measure more rounds."


def slow_rounds(times: Times) -> list[int]:
    """The rounds of a slow mode, such as a clock rate that some processes never get; none without one.

    A mode is at least a quarter of the rounds, and at least two, on either side of a gap that is at least
    5 % of the time and four times the standard deviation within the two groups. Fewer than 3 % of arms
    without a slow mode are said to have one (7 % with six rounds that scatter by 10 %). It cannot say why
    there is one, and it sees none where the scatter is as large as the distance between the modes.
    """
    least, most = _positive(times.least_ns), _positive(times.most_ns)
    n = len(least)
    fewest = max(2, math.ceil(SLOW_SHARE * n))
    order = np.argsort(least, kind="stable")
    middles = (np.log(least) + np.log(most))[order] / 2
    found, widest = [], 0.0
    for split in range(fewest, n - fewest + 1):
        # What the clock hides does not count as a gap.
        gap = math.log(least[order[split]]) - math.log(most[order[:split]].max())
        groups = middles[:split], middles[split:]
        within = math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / (n - 2))
        if gap >= max(math.log(SLOW_RATIO), SLOW_GAP * within) and gap > widest:
            found, widest = sorted(order[split:].tolist()), gap
    return found


def minimal_detectable_effect(
    a_ns: Sequence[float] | Floats,
    b_ns: Sequence[float] | Floats,
    *,
    noise_floor: float | None = None,
    resolution: float = 1.0,
) -> float | None:
    """The smallest ratio above 1 that as many rounds with this noise would call `faster` with 80 % power.

    The rounds are centred, scaled by sqrt(n / (n - 1)) and given random signs; n of them are drawn again
    and again. A true log ratio D shows in a draw when D + L > 0, L being the lower end of the draw's exact
    rank interval, and D + H >= log(threshold), H being its Hodges-Lehmann estimate. So the answer is
    exp(80 % quantile over the draws of max(-L, log(threshold) - H)), never below the verdict's threshold.
    The part of the ratio that the clock leaves open (`resolution`, a factor) may all be on the wrong side.

    It is an estimate and depends on which disturbed rounds happened to be among the n: with six or ten rounds
    it is easily two or three times too small or too large. It is about the next session under the same noise,
    not about how certain this one is; that is what the interval is for. It ignores false-discovery control,
    which demands more. None below MIN_ROUNDS.
    """
    differences = _log_ratios(a_ns, b_ns)
    n = len(differences)
    if n < MIN_ROUNDS:
        return None
    centre = np.median(_walsh_averages(differences))
    residuals = (differences - centre) * math.sqrt(n / (n - 1))
    # No more rounds than that are drawn, to save memory: their noise falls with the square root of n.
    drawn_n = min(n, _LARGE_N)
    random = np.random.default_rng(_SEED)
    shape = (max(199, min(999, 2_000_000 // drawn_n**2)), drawn_n)
    drawn = residuals[random.integers(0, n, shape)] * random.choice([-1.0, 1.0], shape)
    averages = np.sort(_walsh_averages(drawn), axis=-1) * math.sqrt(drawn_n / n)
    lowest, estimate = averages[:, _signed_rank_cut(drawn_n)], np.median(averages, axis=-1)
    needed = np.maximum(-lowest, math.log(threshold_of(noise_floor)) - estimate)
    return max(threshold_of(noise_floor), float(np.exp(np.quantile(needed, POWER)))) * resolution


def adjusted_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """Benjamini-Hochberg: if everything at most q is called a difference, a share q of the calls is wrong.

    That is on average, for tests that are independent or positively dependent, as operators of one session
    are. It says nothing about a single call. None (nothing to test) passes through and does not count.
    With six rounds no p is below 3.1 %, so a difference survives only where most of the others differ too:
    operators need ten rounds or more.
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return list(p_values)
    adjusted = iter(scipy.stats.false_discovery_control(known, method="bh").tolist())
    return [None if p is None else next(adjusted) for p in p_values]


def noise_floor(aa_speedups: Sequence[float]) -> float | None:
    """The ratio that identical arms stay within in 95 % of A/A sessions: exp of that quantile of |log ratio|.

    From 19 sessions on, the quantile is the one that the next session exceeds with a chance of 5 %
    (Weibull's); with fewer it is the largest deviation seen, exceeded with a chance of 1 / (n + 1). Below 10
    sessions that chance is 10 % or more, so the answer is None.

    It holds for sessions of the same length as those it was made from: more rounds have a lower floor. It
    cannot tell why identical arms differ, nor what happens on a machine that is busier than it was during the
    A/A sessions.
    """
    ratios = _positive(aa_speedups)
    if len(ratios) < MIN_AA_SESSIONS:
        return None
    return float(np.exp(np.quantile(np.abs(np.log(ratios)), CONFIDENCE, method="weibull")))


def threshold_of(noise_floor: float | None) -> float:
    """The ratio that a difference must reach to count."""
    return max(PRACTICAL_RATIO, noise_floor or 1.0)


def _effective_p(speedup: Speedup, adjusted_p: float | None) -> float | None:
    return speedup.p_value if adjusted_p is None else adjusted_p


def _why_no_difference_is_shown(
    speedup: Speedup, threshold: float, limit: str, adjusted_p: float | None
) -> list[str]:
    """Which conditions of `faster` and `slower` fail; none when a difference is shown."""
    assert speedup.low is not None
    assert speedup.high is not None
    failed = []
    if speedup.low <= 1 <= speedup.high:
        failed.append("the interval holds 1")
    p = _effective_p(speedup, adjusted_p)
    if p is None:
        failed.append("there is no p-value")
    elif p > SIGNIFICANCE:
        among = "" if adjusted_p is None else " after false-discovery control"
        failed.append(f"p = {beside(p, SIGNIFICANCE, 2, 'g')}{among} is above {SIGNIFICANCE}")
    if 1 / threshold < speedup.nearest < threshold:
        estimate = beside(speedup.nearest, threshold if speedup.nearest > 1 else 1 / threshold, 3)
        is_near = f"{estimate} is" if speedup.bounds is None else f"may be {estimate},"
        failed.append(f"the estimate {is_near} within {limit} of 1")
    return failed


def _positive(values: Sequence[float] | Floats) -> Floats:
    observed = np.asarray(values, dtype=float)
    if observed.ndim != 1 or not (np.isfinite(observed).all() and (observed > 0).all()):
        raise ValueError("not all are positive finite numbers")
    return observed


def _log_ratios(a_ns: Sequence[float] | Floats, b_ns: Sequence[float] | Floats) -> Floats:
    a, b = np.asarray(a_ns, dtype=float), np.asarray(b_ns, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise ValueError(f"not paired rounds: {a.shape} and {b.shape}")
    return np.log(_positive(a)) - np.log(_positive(b))


def _walsh_averages(values: Floats) -> Floats:
    """All averages of two values along the last axis, including a value with itself."""
    first, second = np.triu_indices(values.shape[-1])
    return (values[..., first] + values[..., second]) / 2


def _bootstrap_interval(differences: Floats) -> tuple[float, float]:
    """The widened percentile interval of the Hodges-Lehmann estimate (see `paired_speedup`)."""
    n = len(differences)
    tail = scipy.stats.norm.cdf(-math.sqrt(n / (n - 1)) * scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    found = scipy.stats.bootstrap(
        (differences,),
        lambda sample, axis: np.median(_walsh_averages(sample), axis=axis),
        confidence_level=1 - 2 * tail,
        n_resamples=_RESAMPLES,
        batch=max(1, 1_000_000 // (n * n)),
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


def _signed_rank_p(differences: Floats) -> float:
    """The two-sided p-value of the signed-rank test, given the sizes of the differences.

    scipy's exact test does not handle ties, and whole microseconds have many. Zeros keep their rank but have
    no sign (Pratt): rounds without a difference are evidence that there is none.
    """
    # Equal ratios of different times differ in the last bits of their logarithms.
    differences = np.round(differences, 12)
    if len(differences) > _LARGE_N:
        if not differences.any():
            return 1.0
        return float(scipy.stats.wilcoxon(differences, zero_method="pratt", method="asymptotic").pvalue)
    # Twice the rank is a whole number, even for ties.
    ranks = np.round(2 * scipy.stats.rankdata(np.abs(differences))).astype(int)
    probability = _rank_sum_distribution(tuple(ranks[differences != 0].tolist()))
    positive, negative = int(ranks[differences > 0].sum()), int(ranks[differences < 0].sum())
    return min(1.0, 2 * float(probability[: min(positive, negative) + 1].sum()))


@lru_cache(maxsize=256)
def _signed_rank_cut(n: int) -> int:
    """How many sorted Walsh averages to drop at each end for an interval of 95 %."""
    tail = (1 - CONFIDENCE) / 2
    if n > _LARGE_N:
        mean, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
        return int(mean - scipy.stats.norm.ppf(1 - tail) * math.sqrt(variance))
    return (
        int(np.searchsorted(np.cumsum(_rank_sum_distribution(tuple(range(1, n + 1)))), tail, side="right"))
        - 1
    )


@lru_cache(maxsize=256)
def _rank_sum_distribution(ranks: tuple[int, ...]) -> Floats:
    """P(sum = s) for s = 0, 1, ...: each rank is in the sum or not, with equal chance."""
    probability = np.zeros(sum(ranks) + 1)
    probability[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: len(probability) - rank]
        probability = (probability + shifted) / 2
    return probability
