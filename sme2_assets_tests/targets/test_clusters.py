"""CPUs grouped and chosen, on machines as their kernels describe them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import Sme2Error
from sme2_assets.targets import NativeTarget
from sme2_assets.targets.clusters import (
    Cluster,
    Cpu,
    chosen_cpus,
    clusters_of,
    cpu_list,
    cpu_text,
    parse_cpu_list,
    parse_features,
    parse_vector_bits,
    read_clusters,
    read_online,
)

# The frequencies of a phone with four kinds of CPUs.
FOUR_KINDS = [
    *(Cpu(number, 2_300_000, 320, "Cortex-A520") for number in (0, 1)),
    *(Cpu(number, 3_200_000, 750, "Cortex-A720") for number in (2, 3, 4)),
    *(Cpu(number, 3_000_000, 700, "Cortex-A720") for number in (5, 6)),
    Cpu(7, 3_300_000, 1024, "Cortex-X4"),
]


def test_the_fastest_is_prime_the_slowest_efficiency_and_all_between_performance():
    clusters = clusters_of(FOUR_KINDS)
    assert [(cluster.name, cluster.cpus) for cluster in clusters] == [
        ("prime", (7,)),
        ("performance", (2, 3, 4)),
        ("performance", (5, 6)),
        ("efficiency", (0, 1)),
    ]
    assert clusters[1].max_khz == 3_200_000
    assert cpu_text(clusters) == "1x Cortex-X4 + 3x Cortex-A720 + 2x Cortex-A720 + 2x Cortex-A520"


def test_two_kinds_have_no_prime_and_one_kind_is_all():
    two = clusters_of(Cpu(number, 1_800_000 if number < 4 else 2_400_000) for number in range(8))
    assert [(cluster.name, cluster.cpus) for cluster in two] == [
        ("performance", (4, 5, 6, 7)),
        ("efficiency", (0, 1, 2, 3)),
    ]
    one = clusters_of(Cpu(number, 2_600_000, 1024, "Neoverse-N1") for number in range(4))
    assert [(cluster.name, cluster.count) for cluster in one] == [("all", 4)]
    assert cpu_text(one) == "Neoverse-N1"
    assert clusters_of([]) == ()


def test_part_numbers_rank_cpus_where_frequency_and_capacity_are_hidden(tmp_path):
    blocks = [(0, "0xd80"), (1, "0xd80"), (2, "0xd81"), (3, "0xd82")]
    text = "\n".join(
        f"processor\t: {cpu}\nFeatures\t: fp asimd sme sme2\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"
        for cpu, part in blocks
    )
    (tmp_path / "cpuinfo").write_text(text)
    clusters = read_clusters(tmp_path, tmp_path)
    assert [(cluster.name, cluster.cpus, cluster.core) for cluster in clusters] == [
        ("prime", (3,), "Cortex-X4"),
        ("performance", (2,), "Cortex-A720"),
        ("efficiency", (0, 1), "Cortex-A520"),
    ]
    # A core of another maker has no rank in our table.
    (tmp_path / "cpuinfo").write_text(text.replace("0xd82", "0xfff"))
    assert [(cluster.name, cluster.cpus) for cluster in read_clusters(tmp_path, tmp_path)] == [
        ("all", (0, 1, 2, 3))
    ]


def test_a_cpu_that_is_offline_and_tells_nothing_belongs_to_no_cluster(tmp_path):
    for cpu, khz in ((0, 1_000_000), (1, 2_000_000), (2, None)):
        folder = tmp_path / "devices/system/cpu" / f"cpu{cpu}"
        (folder / "cpufreq").mkdir(parents=True)
        if khz:
            (folder / "cpufreq" / "cpuinfo_max_freq").write_text(f"{khz}\n")
    (tmp_path / "devices/system/cpu/online").write_text("0-1\n")
    clusters = read_clusters(tmp_path, tmp_path)
    assert [cluster.cpus for cluster in clusters] == [(1,), (0,)]
    online = read_online(tmp_path)
    assert online == (0, 1)
    with pytest.raises(Sme2Error, match=r"CPU 2 of the choice '1-2' is not online"):
        chosen_cpus("1-2", clusters, online)


@pytest.mark.parametrize(
    ("choice", "cpus"),
    [
        ("prime", (7,)),
        ("performance", (2, 3, 4, 5, 6)),
        ("Efficiency", (0, 1)),
        ("prime, performance", (2, 3, 4, 5, 6, 7)),
        ("efficiency,7", (0, 1, 7)),
        ("all", tuple(range(8))),
        ("0-1,4", (0, 1, 4)),
        (" 3 ", (3,)),
        ("0xf0", (4, 5, 6, 7)),
        ("0X81", (0, 7)),
    ],
)
def test_a_choice_by_name_list_or_mask(choice, cpus):
    assert chosen_cpus(choice, clusters_of(FOUR_KINDS), range(8)) == cpus


@pytest.mark.parametrize(
    "choice", ["", ",", "primes", "0-", "3-1", "-1", "0x", "0x0", "1;2", "$(reboot)", "0,,1", "9" * 40, "1.5"]
)
def test_what_is_no_choice_is_told_with_what_there_is(choice):
    with pytest.raises(Sme2Error) as caught:
        chosen_cpus(choice, clusters_of(FOUR_KINDS), range(8))
    assert "prime (7), performance (2-4)" in str(caught.value)


def test_a_name_that_a_machine_has_not_is_an_error_that_lists_what_it_has():
    two = clusters_of([Cpu(0, 1), Cpu(1, 2)])
    with pytest.raises(Sme2Error, match="no CPUs called 'prime'") as caught:
        chosen_cpus("prime", two, (0, 1))
    assert "performance (1), efficiency (0)" in str(caught.value)
    with pytest.raises(Sme2Error, match="of one kind"):
        chosen_cpus("efficiency", (Cluster("all", (0, 1)),), (0, 1))


def test_a_cluster_means_those_of_its_cpus_that_are_awake():
    clusters = clusters_of(FOUR_KINDS)
    assert chosen_cpus("performance", clusters, (0, 2, 3)) == (2, 3)
    with pytest.raises(Sme2Error, match=r"All CPUs of 'prime' \(7\) are offline"):
        chosen_cpus("prime", clusters, (0, 1, 2))
    with pytest.raises(Sme2Error, match="CPU 7 of the choice '7' is offline"):
        chosen_cpus("7", clusters, (0, 1, 2))


@given(st.sets(st.integers(0, 1023), min_size=1, max_size=40))
def test_a_list_and_a_mask_of_cpus_mean_what_they_were_made_of(cpus: set[int]):
    everything = range(1024)
    mask = hex(sum(1 << cpu for cpu in cpus))
    assert parse_cpu_list(cpu_list(cpus)) == tuple(sorted(cpus))
    assert chosen_cpus(cpu_list(cpus), (), everything) == chosen_cpus(mask, (), everything)


@given(
    st.lists(
        st.builds(
            Cpu,
            st.integers(0, 63),
            st.none() | st.integers(1, 5),
            st.none() | st.integers(1, 5),
            st.none()
            | st.sampled_from(["Cortex-A520", "Cortex-A720", "Cortex-X4", "implementer 0x51 part 0x1"]),
        ),
        unique_by=lambda cpu: cpu.number,
    )
)
def test_no_cpu_is_in_two_clusters_and_none_is_invented(cpus: list[Cpu]):
    listed = [number for cluster in clusters_of(cpus) for number in cluster.cpus]
    assert len(listed) == len(set(listed))
    assert set(listed) <= {cpu.number for cpu in cpus}


def test_features_are_those_that_every_cpu_has():
    text = "Features\t: fp asimd sme2\n\nFeatures\t: fp asimd\n"
    assert parse_features(text) == ("fp", "asimd")
    assert parse_features("") == ()
    assert (parse_vector_bits("64\n"), parse_vector_bits(""), parse_vector_bits("0")) == (512, None, None)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")
def test_this_machine_has_clusters_and_lets_its_cpus_be_chosen():
    target = NativeTarget("linux")
    facts = target.facts()
    assert {cpu for cluster in facts.clusters for cpu in cluster.cpus} >= os.sched_getaffinity(0)
    assert "fp" in facts.features or facts.arch != "aarch64"
    assert target.cpus("all") == tuple(sorted(os.sched_getaffinity(0)))
    with pytest.raises(Sme2Error, match="not online"):
        target.cpus("1000")
    with pytest.raises(Sme2Error, match="cannot be chosen on mac"):
        NativeTarget("mac").cpus("0")
