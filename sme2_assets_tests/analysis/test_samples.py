from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.samples import (
    KERNEL_SAMPLE_COLUMNS,
    SAMPLE_KINDS,
    UNITS,
    attribute_samples,
    instruction_units,
    kernel_sample_rows,
    time_share_agreement,
)
from sme2_assets.analysis.timeline import timeline_rows
from sme2_assets.errors import EvidenceError
from sme2_assets.etdump import Events, read_etdump
from sme2_assets.evidence.samples import NO_WORD, Samples
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.recording import write_samples
from sme2_assets_tests.made.build_trace import Block, Profile
from sme2_assets_tests.made.traces import Delegate, Portable, inference, sound, trace

CONV = "Convolution (NHWC, F32) IGEMM #1"
ADD = "Add (ND) #1"
MEAN = "native_call_mean.out"
XNNPACK_LIBRARY = "libexecutorch_backend_xnnpack.so"
SME2_KERNEL = "kai_kernel_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"

FMOPA, LDR_X, NOP = 0x80812000, 0xF8626820, 0xD503201F
FUNCTIONS = [
    {"library": XNNPACK_LIBRARY, "offset": 4096, "symbol": SME2_KERNEL},
    {"library": XNNPACK_LIBRARY, "offset": 8192, "symbol": None},
    {"library": None, "offset": 0, "symbol": None},
]


def document(
    times: Sequence[int],
    *,
    threads: Sequence[int] | None = None,
    functions: Sequence[int] | None = None,
    words: Sequence[int | None] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """What a runner writes, for samples at these times of the trace's clock."""
    count = len(times)
    return {
        "schema": 1,
        "arch": "aarch64",
        "period_ns": 500_000,
        "dropped": 0,
        "missed": 3,
        "clock": {"trace_ns": 1_000, "monotonic_ns": 7_001_000, "lag_ns": 0},
        "threads": [
            {"tid": 11, "name": "sme2_runner", "main": True},
            {"tid": 12, "name": "sme2_runner", "main": False},
        ],
        "functions": FUNCTIONS,
        "samples": {
            "time_ns": [time + 7_000_000 for time in times],
            "thread": [0] * count if threads is None else list(threads),
            "function": [0] * count if functions is None else list(functions),
            "address": [4100] * count,
            "word": [FMOPA] * count if words is None else list(words),
        },
        **changes,
    }


@pytest.fixture
def samples_at(tmp_path: Path) -> Callable[..., Samples]:
    def made(times: Sequence[int], **changes: Any) -> Samples:
        path = tmp_path / "samples.json"
        path.write_text(json.dumps(document(times, **changes)))
        return Samples.read(path)

    return made


@pytest.fixture(scope="module")
def module_samples_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[int]], Samples]:
    path = tmp_path_factory.mktemp("samples") / "samples.json"

    def made(times: Sequence[int]) -> Samples:
        path.write_text(json.dumps(document(times)))
        return Samples.read(path)

    return made


# Reading


def test_times_are_in_the_clock_of_the_trace(samples_at):
    samples = samples_at([5, 1_500_000_000])
    assert samples.time_ns.tolist() == [5, 1_500_000_000]
    assert (samples.period_ns, samples.dropped, samples.missed) == (500_000, 0, 3)
    assert samples.functions[0].symbol == SME2_KERNEL
    assert [thread.main for thread in samples.threads] == [True, False]


def test_a_word_that_could_not_be_read_is_no_word(samples_at):
    assert samples_at([1, 2], words=[None, NOP]).word.tolist() == [NO_WORD, NOP]


def broken(path: str, value: Any) -> dict[str, Any]:
    """A file with another value at a dotted path."""
    made = json.loads(json.dumps(document([1, 2])))
    *parents, last = path.split(".")
    place = made
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    place[int(last) if isinstance(place, list) else last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema", 2, "version 2 of its format"),
        ("arch", None, "arch"),
        ("period_ns", 0.5, "period_ns"),
        ("dropped", -1, "dropped"),
        ("missed", True, "missed"),
        ("clock", [], "clock"),
        ("clock.trace_ns", 2**64, "clock.trace_ns"),
        ("threads", {}, "threads"),
        ("threads.0", "main", "threads.0"),
        ("threads.0.main", 1, "threads.0.main"),
        ("functions.0.offset", "4096", "functions.0.offset"),
        ("functions.0.symbol", 7, "functions.0.symbol"),
        ("functions.0.library", [], "functions.0.library"),
        ("samples", None, "samples"),
        ("samples.time_ns", None, "samples.time_ns"),
        ("samples.time_ns", [1], "2 values for 1 samples"),
        ("samples.time_ns", [1, 2**63], "samples.time_ns"),
        ("samples.time_ns", [1, 1.5], "samples.time_ns"),
        ("samples.time_ns", [1, True], "samples.time_ns"),
        ("samples.thread", [0, 2], "thread has a value out of range"),
        ("samples.function", [0, 3], "function has a value out of range"),
        ("samples.function", [0, -1], "samples.function"),
        ("samples.address", [1, None], "samples.address"),
        ("samples.word", [1, 2**32], "samples.word"),
        ("samples.word", [1, -1], "samples.word"),
        ("samples.word", [1, "nop"], "samples.word"),
    ],
)
def test_a_file_that_no_runner_writes_is_refused(tmp_path: Path, path: str, value: Any, said: str):
    (tmp_path / "samples.json").write_text(json.dumps(broken(path, value)))
    with pytest.raises(EvidenceError, match=said):
        Samples.read(tmp_path / "samples.json")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema": 1}']
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, raw: bytes):
    (tmp_path / "samples.json").write_bytes(raw)
    with pytest.raises(EvidenceError):
        Samples.read(tmp_path / "samples.json")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(EvidenceError, match="is missing"):
        Samples.read(tmp_path / "samples.json")
    with pytest.raises(EvidenceError, match="is not a regular file"):
        Samples.read(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(
    st.sampled_from(
        [
            *("schema", "arch", "period_ns", "clock", "clock.trace_ns", "threads", "threads.0", "functions"),
            *(
                "functions.0",
                "samples",
                "samples.time_ns",
                "samples.thread",
                "samples.word",
                "samples.word.0",
            ),
        ]
    ),
    json_values,
)
def test_no_value_anywhere_gives_more_than_a_clear_error(tmp_path_factory, path, value):
    file = tmp_path_factory.getbasetemp() / "hostile.json"
    file.write_text(json.dumps(broken(path, value)))
    try:
        samples = Samples.read(file)
    except EvidenceError:
        return
    assert len(samples) == len(samples.thread) == len(samples.function) == len(samples.word)


# Units

# Words made by GNU as 2.40; those of SME2, which it does not know, stand so in KleidiAI's and the Arm Compute
# Library's sources.
INSTRUCTIONS = {
    "SME": {
        0x80812000: "fmopa za0.s, p0/m, p1/m, z0.s, z1.s",
        0xA0812001: "smopa za1.s, p0/m, p1/m, z0.b, z1.b",
        0x81812002: "bfmopa za2.s, p0/m, p1/m, z0.h, z1.h",
        0xE1000000: "ldr za[w12, 0], [x0]",
        0xE1200000: "str za[w12, 0], [x0]",
        0xE09F0000: "ld1w {za0h.s[w12, 0]}, p0/z, [x0]",
        0xE0BF8000: "st1w {za0v.s[w12, 0]}, p0, [x0]",
        0xC0820000: "mova z0.s, p0/m, za0h.s[w12, 0]",
        0xC00800FF: "zero {za}",
        0xA040438E: "ld1w {z14.s-z15.s}, pn8/z, [x28]",
        0xA040C779: "ldnt1w {z24.s-z27.s}, pn9/z, [x27]",
        0xC13619C0: "fmla za.s[w8, 0, vgx4], {z14.s-z17.s}, z6.s",
        0xC152A380: "fmla za.s[w9, 0, vgx4], {z28.s-z31.s}, z2.s[0]",
        0xC15090A0: "sdot za.s[w8, 0, vgx4], {z4.b-z7.b}, z0.b[0]",
        0xC08A41EA: "luti4 {z10.b-z11.b}, zt0, z15[0]",
        0xC0912740: "addva za0.s, p1/m, p1/m, z26.s",
    },
    "SVE": {
        0x65A20020: "fmla z0.s, p0/m, z1.s, z2.s",
        0x44820020: "sdot z0.s, z1.b, z2.b",
        0xA540A000: "ld1w {z0.s}, p0/z, [x0]",
        0xE540E000: "st1w {z0.s}, p0, [x0]",
        0x85804000: "ldr z0, [x0]",
        0x2518E3E0: "ptrue p0.b",
        0x25A11400: "whilelt p0.s, x0, x1",
        0x25AA4570: "whilelt pn8.s, x11, x10, vlx2",
        0x04A0E3E0: "cntw x0",
        0x04BF5820: "rdsvl x0, #1",
    },
    "SIMD/FP": {
        0x4F821020: "fmla v0.4s, v1.4s, v2.s[0]",
        0x4F82E020: "sdot v0.4s, v1.16b, v2.4b[0]",
        0x4E82A420: "smmla v0.4s, v1.16b, v2.16b",
        0x1E222820: "fadd s0, s1, s2",
        0x9E660000: "fmov x0, d0",
        0x1E380000: "fcvtzs w0, s0",
        0x4E040C00: "dup v0.4s, w0",
        0x4E284820: "aese v0.16b, v1.16b",
    },
    "load/store": {
        0x3DC00000: "ldr q0, [x0]",
        0xAD400400: "ldp q0, q1, [x0]",
        0x4C407800: "ld1 {v0.4s}, [x0]",
        0x4C400800: "ld4 {v0.4s-v3.4s}, [x0]",
        0xF81F0FE0: "str x0, [sp, #-16]!",
        0xF8626820: "ldr x0, [x1, x2]",
        0xB8200041: "ldadd w0, w1, [x2]",
        0xF9800000: "prfm pldl1keep, [x0]",
        0xC85F7C20: "ldxr x0, [x1]",
    },
    "other": {
        0x8B020020: "add x0, x1, x2",
        0x9B027C20: "mul x0, x1, x2",
        0x91000420: "add x0, x1, #1",
        0xD2800020: "mov x0, #1",
        0x90000000: "adrp x0, .",
        0x14000000: "b .",
        0x54000001: "b.ne .",
        0xB4000000: "cbz x0, .",
        0xD65F03C0: "ret",
        0xD63F0000: "blr x0",
        0xD4000001: "svc #0",
        0xD53BD040: "mrs x0, tpidr_el0",
        0xD503201F: "nop",
        0xD503477F: "smstart",
        0xD503467F: "smstop",
        0xD5033F9F: "dsb sy",
        0x9A820020: "csel x0, x1, x2, eq",
        0x00000000: "udf #0",
    },
}


@pytest.mark.parametrize("unit", INSTRUCTIONS)
def test_instructions_are_classed_by_their_encoding_space(unit: str):
    words = INSTRUCTIONS[unit]
    units = instruction_units(list(words))
    assert dict(zip(words.values(), units, strict=True)) == dict.fromkeys(words.values(), unit)


def test_a_missing_word_is_of_an_unknown_unit():
    assert instruction_units([NO_WORD, 0xFFFFFFFF]).tolist() == ["unknown", "SIMD/FP"]
    assert instruction_units([]).tolist() == []


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_every_word_has_a_unit(words):
    units = instruction_units(words)
    assert len(units) == len(words)
    assert set(units) <= set(UNITS) - {"unknown"}


def test_words_of_another_architecture_are_of_an_unknown_unit(samples_at):
    events = trace(inference([], 100, start_ns=0))
    rows = attribute_samples(samples_at([5], arch="x86_64"), events, 0)
    assert rows["unit"].tolist() == ["unknown"]


# Attribution


def where(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Kind, backend, delegate and position of each sample; None where there is none."""
    columns = rows[["kind", "backend", "delegate", "position"]].astype(object)
    return [tuple(None if pd.isna(value) else value for value in row) for row in columns.to_numpy()]


FRAMEWORK = ("framework_overhead", "framework", None, None)
BETWEEN = ("between inferences", None, None, None)
UNATTRIBUTED = ("unattributed", None, None, None)


def overhead(delegate: int) -> tuple[Any, ...]:
    return ("delegate_overhead", "framework", delegate, None)


def xnnpack(delegate: int, position: int) -> tuple[Any, ...]:
    return ("operator", "xnnpack", delegate, position)


def portable(position: int) -> tuple[Any, ...]:
    return ("operator", "portable", None, position)


def test_samples_belong_to_what_ran_when_they_were_taken(samples_at):
    calls = [
        Delegate([(CONV, 1001), (ADD, 2002)], 3500),  # fractions of microseconds: a true clock
        Portable(MEAN, 50, 60),
        Portable(None, 0, 40),
        Delegate([(CONV, 4001)], 4100),
    ]
    events = trace(inference(calls, 9000, start_ns=10_000), inference(calls, 9000, start_ns=20_000))
    expected = {
        9_999: UNATTRIBUTED,
        10_000: xnnpack(0, 0),
        11_000: xnnpack(0, 0),
        11_001: xnnpack(0, 1),
        13_002: xnnpack(0, 1),
        13_003: overhead(0),
        13_499: overhead(0),
        13_500: portable(0),
        13_549: portable(0),
        13_550: FRAMEWORK,
        13_560: portable(1),
        13_600: xnnpack(1, 0),
        17_650: overhead(1),
        17_700: FRAMEWORK,
        18_999: FRAMEWORK,
        19_000: BETWEEN,
        20_000: xnnpack(0, 0),
        28_999: FRAMEWORK,
        29_000: UNATTRIBUTED,
    }
    rows = attribute_samples(samples_at(list(expected)), events, 0)
    assert dict(zip(expected, where(rows), strict=True)) == expected
    iterations = [None if pd.isna(value) else value for value in rows["iteration"]]
    assert iterations == [None, *[0] * 14, None, 1, 1, None]
    assert not rows["near_boundary"].any()


def test_samples_of_the_pool_belong_to_the_operator_of_the_main_thread(samples_at):
    events = trace(inference([Delegate([(CONV, 5000)], 6000)], 7000, start_ns=0))
    rows = attribute_samples(samples_at([100, 100], threads=[0, 1]), events, 0)
    assert where(rows) == [xnnpack(0, 0)] * 2
    assert rows["thread"].tolist() == [0, 1]


def test_samples_in_warm_up_are_unattributed(samples_at):
    events = trace(*(inference([Delegate([(CONV, 5000)], 6000)], 7000, start_ns=n * 10_000) for n in (1, 2)))
    rows = attribute_samples(samples_at([10_100, 18_000, 20_100]), events, 1)
    assert where(rows) == [UNATTRIBUTED, BETWEEN, xnnpack(0, 0)]
    assert rows["iteration"].tolist() == [0, pd.NA, 1]


def test_without_inferences_nothing_is_attributed(samples_at):
    assert where(attribute_samples(samples_at([0, 5, 10**9]), trace(), 0)) == [UNATTRIBUTED] * 3


def test_no_samples_give_no_rows(samples_at):
    events = trace(inference([Delegate([(CONV, 5000)], 6000)], 7000))
    assert len(attribute_samples(samples_at([]), events, 0)) == 0
    rows = kernel_sample_rows(samples_at([]), events, 0)
    assert len(rows) == 0
    assert list(rows.columns) == list(KERNEL_SAMPLE_COLUMNS)


def test_boundaries_are_moved_by_what_flooring_lost_on_average(samples_at):
    # Four operators told as 10 us each: 2 us of the call are left, half a microsecond per operator.
    events = trace(inference([Delegate([(CONV, 10_000)] * 4, 42_000)], 50_000, start_ns=0))
    rows = attribute_samples(samples_at([10_400, 10_600, 20_900, 21_100, 31_400, 31_600, 41_999]), events, 0)
    assert rows["position"].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert rows["near_boundary"].all()


def test_a_sample_is_near_a_boundary_as_far_as_flooring_can_have_moved_it(samples_at):
    events = trace(inference([Delegate([(CONV, 10_000)] * 3, 90_000)], 95_000, start_ns=0))
    at = [9_999, 10_000, 11_000, 11_001, 19_999, 20_000, 22_000, 22_001, 30_000, 33_000, 33_001]
    rows = attribute_samples(samples_at(at), events, 0)
    assert rows["near_boundary"].tolist() == [
        *[False, True, True, False],
        *[False, True, True, False],
        *[True, True, False],
    ]
    assert where(rows)[-1] == overhead(0)


def test_operators_that_took_longer_than_their_call_are_squeezed_into_it(samples_at):
    # Rounding up makes the sum too long.
    events = trace(inference([Delegate([(CONV, 2000), (ADD, 2000)], 3000), Portable(MEAN, 50, 60)], 9000, 0))
    rows = attribute_samples(samples_at([1_400, 1_600, 2_999, 3_001]), events, 0)
    assert where(rows) == [xnnpack(0, 0), xnnpack(0, 1), xnnpack(0, 1), portable(0)]


def test_a_sample_in_another_delegate_is_not_called_xnnpacks(samples_at):
    events = trace(inference([Delegate([("conv2d", 5001)], 6000), Delegate([(CONV, 5001)], 6000)], 13_000, 0))
    found = where(attribute_samples(samples_at([100, 6_100]), events, 0))
    assert found == [("operator", "other delegate", 0, 0), xnnpack(1, 0)]


def test_a_sample_in_a_call_without_rows_is_in_an_operator_that_nobody_knows(samples_at):
    events = trace(inference([Delegate([], 6000), Delegate([(CONV, 5001)], 6000)], 13_000, 0))
    found = where(attribute_samples(samples_at([100, 5_900, 6_100]), events, 0))
    assert found == [("operator", "other delegate", 0, 0)] * 2 + [xnnpack(1, 0)]


def test_an_operator_of_no_time_takes_no_samples_of_its_neighbours(samples_at):
    events = trace(inference([Delegate([(CONV, 0), (ADD, 5000), (CONV, 0)], 5000)], 6000, start_ns=0))
    assert where(attribute_samples(samples_at([0, 2_500, 4_999]), events, 0)) == [xnnpack(0, 1)] * 3


nanoseconds = st.integers(0, 20_000)
any_calls = st.lists(
    st.one_of(
        st.builds(
            Delegate,
            st.lists(st.tuples(st.sampled_from([CONV, ADD]), nanoseconds), max_size=5),
            nanoseconds,
        ),
        st.builds(Portable, st.sampled_from([MEAN, None]), nanoseconds, nanoseconds),
    ),
    max_size=5,
)
any_inferences = st.lists(st.tuples(any_calls, nanoseconds, nanoseconds), max_size=4)


@settings(max_examples=60)
@given(any_inferences, st.lists(st.integers(0, 100_000), max_size=60), st.integers(0, 3))
def test_every_sample_ends_in_exactly_one_row(module_samples_at, inferences, times, warmup):
    events = trace(*(inference(*sound(made, spare_ns), start) for made, spare_ns, start in inferences))
    samples = module_samples_at(times)
    rows = attribute_samples(samples, events, warmup)
    assert len(rows) == len(times)
    assert set(rows["kind"]) <= set(SAMPLE_KINDS)
    counted = kernel_sample_rows(samples, events, warmup)
    assert counted["samples"].sum() == len(times)
    assert counted["near_boundary_samples"].sum() == rows["near_boundary"].sum()
    assert (counted["near_boundary_samples"] <= counted["samples"]).all()
    keys = [column for column in KERNEL_SAMPLE_COLUMNS if not column.endswith("samples")]
    assert not counted.duplicated(keys).any()


@settings(max_examples=40)
@given(any_inferences, st.lists(st.integers(0, 100_000), min_size=1, max_size=60))
def test_operators_are_numbered_as_in_the_timeline(module_samples_at, inferences, times):
    events = trace(*(inference(*sound(made, spare_ns), start) for made, spare_ns, start in inferences))
    rows = attribute_samples(module_samples_at(times), events, 0)
    keys = ["iteration", "backend", "delegate", "position"]
    timeline = timeline_rows(events, 0).query("kind == 'operator'")
    known = {tuple(row) for row in timeline[keys].astype(object).fillna(-1).to_numpy()}
    for row in rows.query("kind == 'operator'")[keys].astype(object).fillna(-1).to_numpy():
        assert tuple(row) in known


true_ns = st.integers(1, 9_000)


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(nanoseconds, st.lists(true_ns, min_size=1, max_size=8), nanoseconds), min_size=1, max_size=4
    ),
    st.lists(st.integers(0, 150_000), min_size=1, max_size=80),
)
def test_a_sample_that_is_not_near_a_boundary_is_in_the_operator_that_truly_ran(
    module_samples_at, delegates, times
):
    """Delegates with true durations, of which the trace only tells what XNNPACK would: floored ones."""
    profiles: list[Profile] = []
    truth: list[tuple[int, int, tuple[Any, ...]]] = []
    now = 0
    for number, (before, durations, after) in enumerate(delegates):
        called = now
        truth.append((now, now + before, overhead(number)))
        now += before
        told = now
        for position, duration in enumerate(durations):
            truth.append((now, now + duration, xnnpack(number, position)))
            floored = duration // 1000 * 1000
            profiles.append(
                Profile(
                    None, told, told + floored, instruction=number, delegate_str=f"Add (ND) #{position + 1}"
                )
            )
            now, told = now + duration, told + floored
        truth.append((now, now + after, overhead(number)))
        now += after
        profiles.append(Profile("DELEGATE_CALL", called, now, instruction=number))
    profiles.append(Profile("Method::execute", 0, now + 1, chain=-1))
    times = [time for time in times if time < now]
    rows = attribute_samples(module_samples_at(times), trace(Block("Execute", profiles)), 0)
    for time, found, near in zip(times, where(rows), rows["near_boundary"], strict=True):
        true = next(what for start, end, what in truth if start <= time < end)
        assert near or found == true, time


# Counting


def test_samples_are_counted_by_operator_thread_function_and_unit(samples_at):
    events = trace(inference([Delegate([(CONV, 50_001), (ADD, 50_001)], 110_000)], 120_000, start_ns=0))
    samples = samples_at(
        [10, 20, 30, 40, 60_000, 115_000, 10**9],
        threads=[0, 0, 0, 1, 0, 0, 0],
        functions=[0, 0, 0, 0, 1, 2, 2],
        words=[FMOPA, FMOPA, LDR_X, FMOPA, NOP, NOP, None],
    )
    rows = kernel_sample_rows(samples, events, 0)
    assert list(rows.columns) == list(KERNEL_SAMPLE_COLUMNS)
    assert rows["samples"].sum() == 7
    first = rows.astype(object).iloc[0]
    assert first.where(first.notna(), None).to_dict() == {
        **{"kind": "operator", "backend": "xnnpack", "delegate": 0, "position": 0, "thread_kind": "main"},
        **{"library": XNNPACK_LIBRARY, "function_offset": 4096, "symbol": SME2_KERNEL},
        **{"kernel_family": "matmul", "role": "compute", "data_types": "f32_f32p2vlx1_f32p2vlx1biasf32"},
        **{"tile": None, "isa": "sme2", "unit": "SME", "samples": 2, "near_boundary_samples": 0},
    }
    assert rows[rows["symbol"] == SME2_KERNEL].groupby(["thread_kind", "unit"])[
        "samples"
    ].sum().to_dict() == {
        ("main", "SME"): 2,
        ("main", "load/store"): 1,
        ("pool", "SME"): 1,
    }
    nameless = rows[rows["function_offset"] == 8192].iloc[0]
    assert nameless["position"] == 1
    assert nameless[["symbol", "role", "isa"]].isna().all()
    outside = rows[rows["kind"] == "unattributed"].iloc[0]
    assert outside[["backend", "library"]].isna().all()
    assert outside["unit"] == "unknown"


def test_shares_of_samples_are_compared_with_shares_of_time(samples_at):
    made = [Delegate([(CONV, 60_001), (ADD, 20_001)], 90_000), Portable(MEAN, 5_000, 6_000)]
    events = trace(inference(made, 100_000, start_ns=0), inference(made, 100_000, start_ns=200_000))
    at = [200_000 + 1000 * step for step in range(100)]
    # A sample of the pool, and one outside inferences, count for nobody.
    samples = samples_at([*at, 200_500, 150_000], threads=[*[0] * 100, 1, 0])
    found = time_share_agreement(kernel_sample_rows(samples, events, 1), timeline_rows(events, 1))
    assert list(found.columns) == [
        "backend",
        "delegate",
        "position",
        "sample_share",
        "time_share",
        "difference",
    ]
    assert found["backend"].tolist() == ["xnnpack", "xnnpack", "portable"]
    assert found["position"].tolist() == [0, 1, 0]
    assert found["time_share"].tolist() == pytest.approx([0.60001, 0.20001, 0.05])
    assert found["sample_share"].tolist() == pytest.approx([0.61, 0.20, 0.05])
    assert found["difference"].tolist() == pytest.approx([0.00999, -0.00001, 0.0])


def test_operators_without_samples_are_compared_too(samples_at):
    events = trace(inference([Delegate([(CONV, 60_001), (ADD, 20_001)], 90_000)], 100_000, start_ns=0))
    found = time_share_agreement(kernel_sample_rows(samples_at([]), events, 0), timeline_rows(events, 0))
    assert found["sample_share"].tolist() == [0, 0]
    assert found["time_share"].tolist() == pytest.approx([0.60001, 0.20001])


# Real runs


def sampled_run(
    command: Sequence[str | os.PathLike[str]],
    runner: RunnerBinary,
    model: ExportedModel,
    folder: Path,
    *,
    iterations: int,
    threads: int,
    **env: str,
) -> tuple[Samples, Events]:
    subprocess.run(
        [
            *(*command, "--model", model.pte, "--input", model.inputs[0], "--pass", "kernels"),
            *("--warmup", "1", "--iterations", str(iterations), "--threads", str(threads)),
            *("--result", folder / "result.json", "--outputs", folder / "outputs"),
            *("--etdump", folder / "trace.etdump", "--samples", folder / "recording.json"),
        ],
        check=True,
        capture_output=True,
        env={**os.environ, **env},
    )
    write_samples(
        folder / "recording.json", folder / "samples.json", (runner.path.parent, runner.library_dir)
    )
    return Samples.read(folder / "samples.json"), read_etdump(folder / "trace.etdump")


on_linux = pytest.mark.skipif(platform.system() != "Linux", reason="the sampler was only ever run on Linux")


@on_linux
def test_a_real_run_is_attributed_without_loss(
    exported: Callable[[str], ExportedModel], runner_binary: RunnerBinary, tmp_path: Path
):
    samples, events = sampled_run(
        [runner_binary.path], runner_binary, exported("toy_cnn-fp32"), tmp_path, iterations=100, threads=2
    )
    rows = attribute_samples(samples, events, 0)
    assert len(rows) == len(samples) > 20
    counted = kernel_sample_rows(samples, events, 0)
    assert counted["samples"].sum() == len(samples)
    # The main thread works on operators for nearly all of the time.
    main = counted[counted["thread_kind"] == "main"]
    assert main[main["kind"] == "operator"]["samples"].sum() > 0.5 * main["samples"].sum()
    operators = timeline_rows(events, 0).query("kind == 'operator'")
    agreement = time_share_agreement(counted, timeline_rows(events, 0))
    assert len(agreement) == len(operators.drop_duplicates(["backend", "delegate", "position"]))
    assert agreement["time_share"].sum() < 1
    assert np.isfinite(agreement["difference"]).all()


@on_linux
def test_emulated_sme2_kernels_are_found_on_the_convolutions_and_nowhere_when_off(
    exported: Callable[[str], ExportedModel],
    emulated_runner: RunnerBinary,
    emulated_command: list[str],
    tmp_path: Path,
):
    counted = {}
    for sme2 in ("on", "off"):
        (tmp_path / sme2).mkdir()
        model, folder = exported("toy_cnn-fp32"), tmp_path / sme2
        samples, events = sampled_run(
            emulated_command, emulated_runner, model, folder, iterations=1, threads=1, SME2_RUNNER_SME2=sme2
        )
        rows = kernel_sample_rows(samples, events, 0)
        assert rows["samples"].sum() == len(samples)
        timeline = timeline_rows(events, 0).query("iteration == 0 and kind == 'operator'")
        counted[sme2] = rows.merge(timeline[["backend", "delegate", "position", "category"]], how="left")
    on, off = counted["on"], counted["off"]
    certain = on[on["isa"].isin(["sme", "sme2"]) & (on["samples"] > on["near_boundary_samples"])]
    assert {"CONV", "GEMM"} <= set(certain["category"])
    assert (certain["unit"] == "SME").any()
    assert set(certain[certain["kind"] == "operator"]["category"]) == {"CONV", "GEMM"}
    assert not off["isa"].isin(["sme", "sme2"]).any()
    assert not (off["unit"] == "SME").any()


def test_a_sample_whose_clock_may_have_passed_a_border_is_near_it(samples_at):
    """The delegate call begins at 1,000,000 and has an operator every millisecond."""
    call = Delegate([(CONV, 1_000_000), (ADD, 1_000_000), (CONV, 1_000_000)], 3_000_000)
    events = trace(inference([call], 3_000_000))
    clock = {"trace_ns": 1_000, "monotonic_ns": 7_001_000, "lag_ns": 50_000}
    soon_after, in_the_middle = 2_040_000, 2_500_000
    rows = attribute_samples(samples_at([soon_after, in_the_middle], clock=clock), events, warmup=0)
    assert rows["position"].tolist() == [1, 1]
    assert rows["near_boundary"].tolist() == [True, False]
