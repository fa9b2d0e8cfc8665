"""What a runner's readings say about its CPU slowing down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.evidence.result import Conditions
from sme2_assets.targets.clusters import Cluster
from sme2_assets.targets.heat import FELL_BELOW, SLOW_BELOW, throttling_flags

CLUSTERS = (
    Cluster("prime", (7,), 3_300_000),
    Cluster("performance", (4, 5, 6), 3_000_000),
    Cluster("efficiency", (0, 1, 2, 3), 2_000_000),
)
MOMENTS = ("start", "middle", "end")


def _readings(*seen: tuple[int | None, int]) -> list[Conditions]:
    """The measuring thread on these CPUs at these frequencies; all other CPUs idle."""
    return [
        Conditions(
            at=at,
            cpu=cpu,
            cpu_khz={number: 300_000 if number != cpu else khz for number in range(8)},
            temperature_c=None,
        )
        for at, (cpu, khz) in zip(MOMENTS, seen, strict=False)
    ]


def test_a_fall_of_the_measuring_cpu_is_flagged_with_both_frequencies():
    flags = throttling_flags(_readings((7, 3_300_000), (7, 3_200_000), (7, 2_100_000)), CLUSTERS)
    assert flags == ["throttled: CPU 7 fell from 3.30 to 2.10 GHz while it measured"]
    assert throttling_flags(_readings((7, 3_300_000), (7, 1_000_000), (7, 3_300_000)), CLUSTERS) == [
        "throttled: CPU 7 fell from 3.30 to 1.00 GHz while it measured"
    ]


def test_cpus_of_one_cluster_are_compared_and_those_of_two_are_not():
    assert throttling_flags(_readings((4, 3_000_000), (5, 2_000_000)), CLUSTERS) == [
        "throttled: CPU 5 fell from 3.00 to 2.00 GHz while it measured"
    ]
    flags = throttling_flags(_readings((7, 3_300_000), (0, 2_000_000)), CLUSTERS)
    assert [flag.partition(":")[0] for flag in flags] == ["moved"]
    assert "CPU 7 (prime)" in flags[0]
    assert "efficiency" in flags[0]
    # Without clusters nothing is known of another CPU.
    assert throttling_flags(_readings((4, 3_000_000), (5, 2_000_000))) == []


def test_a_cpu_far_below_its_maximum_all_the_time_is_slow_not_throttled():
    assert throttling_flags(_readings((4, 1_500_000), (4, 1_500_000), (4, 1_450_000)), CLUSTERS) == [
        "slow: CPU 4 ran at 1.50 GHz or less, its maximum is 3.00 GHz"
    ]


def test_what_was_not_read_gives_no_flag():
    assert throttling_flags([]) == []
    assert (
        throttling_flags(
            [Conditions(at=at, cpu=None, cpu_khz={}, temperature_c=99.0) for at in MOMENTS], CLUSTERS
        )
        == []
    )
    assert (
        throttling_flags(
            [Conditions(at=at, cpu=9, cpu_khz={9: 1}, temperature_c=None) for at in MOMENTS], CLUSTERS
        )
        == []
    )


readings = st.lists(st.sampled_from([0, 3, 4, 6, 7]), min_size=1, max_size=3)


@given(readings, st.integers(100_000, 5_000_000))
def test_a_constant_frequency_never_counts_as_throttling(cpus: list[int], khz: int):
    flags = throttling_flags(_readings(*((cpu, khz) for cpu in cpus)), CLUSTERS)
    assert not [flag for flag in flags if flag.startswith("throttled")]


@given(st.sampled_from([0, 4, 7]), st.lists(st.floats(FELL_BELOW + 0.001, 1), min_size=3, max_size=3))
def test_a_cpu_that_stays_near_its_maximum_gives_no_flag_at_all(cpu: int, shares: list[float]):
    most = next(cluster.max_khz or 0 for cluster in CLUSTERS if cpu in cluster.cpus)
    assert throttling_flags(_readings(*((cpu, round(most * share)) for share in shares)), CLUSTERS) == []


@given(st.sampled_from([0, 4, 7]), st.floats(0.05, 1), st.floats(0.05, FELL_BELOW - 0.01))
def test_every_clear_fall_is_found(cpu: int, share: float, fall: float):
    most = next(cluster.max_khz or 0 for cluster in CLUSTERS if cpu in cluster.cpus)
    first = round(most * share)
    flags = throttling_flags(_readings((cpu, first), (cpu, first), (cpu, round(first * fall))), CLUSTERS)
    assert [flag.partition(":")[0] for flag in flags] == ["throttled"]
    assert SLOW_BELOW < FELL_BELOW
