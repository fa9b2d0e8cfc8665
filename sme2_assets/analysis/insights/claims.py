"""What insights say. Every sentence of an insight is one of these, with the values that make it true.

The predicates go back to the rows of `timeline`, `inferences` and `operator_facts`; means leave out disturbed
rounds, as everywhere. `$run_id` is the arm that the insight is about.
"""

from __future__ import annotations

from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.unit import IS_WAITING

_MATRIX = "category IN ('CONV', 'GEMM')"
_PORTABLE, _DELEGATED = "backend = 'portable'", "backend <> 'portable'"
_EXECUTED = "on_sme_unit = 'on' AND sme2_evidence = 'executed'"
_BY_NAME = "on_sme_unit = 'on' AND sme2_evidence = 'name'"
_OF_XNNPACK = "backend = 'xnnpack'"
_CALLS, _FRAMEWORK = "kind = 'delegate_overhead'", "kind = 'framework_overhead'"
_IS_ON, _IS_UNKNOWN, _NOT_OFF = "on_sme_unit = 'on'", "on_sme_unit = 'unknown'", "on_sme_unit <> 'off'"
_HERE = "backend = $backend AND delegate IS NOT DISTINCT FROM $delegate AND position = $position"
# Differences too small to show in the sentence.
_NS, _SHARE = 1.0, 1e-6


def _rounds(run: str) -> str:
    return f"(SELECT round FROM traced_rounds WHERE run_id = ${run} AND NOT disturbed)"


def _inference(run: str = "run_id") -> str:
    """Mean time of Method::execute in a run: rounds weigh the same, however many inferences they have."""
    return (
        "(SELECT avg(ns) FROM (SELECT avg(execute_ns) AS ns FROM inferences "
        f"WHERE run_id = ${run} AND pass = 'etdump' AND NOT is_warmup AND round IN {_rounds(run)} "
        "GROUP BY round))"
    )


def _time(where: str, run: str = "run_id") -> str:
    """Mean time per inference of some rows of a run."""
    return (
        "((SELECT coalesce(sum(duration_ns / of_round), 0) FROM timeline JOIN "
        f"(SELECT round, count(*) AS of_round FROM inferences WHERE run_id = ${run} AND pass = 'etdump' "
        f"AND NOT is_warmup AND round IN {_rounds(run)} GROUP BY round) USING (round) "
        f"WHERE run_id = ${run} AND NOT is_warmup AND {where}) "
        f"/ (SELECT count(*) FROM traced_rounds WHERE run_id = ${run} AND NOT disturbed))"
    )


def _when_run(where: str) -> str:
    """Mean time of rows of a run, in the inferences that have them."""
    return (
        "(SELECT avg(ns) FROM (SELECT avg(duration_ns) AS ns FROM timeline WHERE run_id = $run_id "
        f"AND NOT is_warmup AND round IN {_rounds('run_id')} AND {where} GROUP BY round))"
    )


def _rows_of_an_inference(pick: str, where: str) -> str:
    """How many such rows an inference of a run has, by their `max` or `min` over all."""
    return (
        f"(SELECT {pick}(rows) FROM (SELECT count(*) FILTER ({where}) AS rows FROM timeline "
        "WHERE run_id = $run_id AND NOT is_warmup GROUP BY round, iteration))"
    )


def _floored(where: str) -> str:
    """What XNNPACK may hide of these rows of an inference: up to a microsecond of each of its own."""
    rows = _rows_of_an_inference("max", f"backend = 'xnnpack' AND {where}")
    return f"1000 * {rows}"


def _may_be_most(where: str) -> str:
    """Whether rows can be half of the rest as well, as XNNPACK floors up to a microsecond of each."""
    return f"{_time(where)} + 2 * {_floored(where)} + {_NS} >= {_inference()}"


def _count(where: str, run: str = "run_id") -> str:
    return f"(SELECT count(*) FROM operator_facts WHERE run_id = ${run} AND {where})"


def _is(value: str, name: str, within: float) -> str:
    return f"abs({value} - ${name}) <= {within}"


def _fact(condition: str) -> str:
    return f"(SELECT bool_and({condition}) FROM operator_facts WHERE run_id = $run_id AND {_HERE})"


def _work(where: str = "true", run: str = "run_id", what: str = "instructions") -> str:
    """What an inference of a run executed, as it was counted."""
    return (
        f"(SELECT coalesce(sum({what}), 0) FROM (SELECT work.*, coalesce(category, 'Overhead') AS category "
        f"FROM operator_work AS work LEFT JOIN (SELECT DISTINCT backend, delegate, position, category "
        f"FROM timeline WHERE run_id = ${run} AND kind = 'operator') AS placed "
        "ON work.kind = 'operator' AND placed.backend = work.backend "
        "AND placed.delegate IS NOT DISTINCT FROM work.delegate AND placed.position = work.position "
        f"WHERE work.run_id = ${run} AND work.kind <> 'between inferences' AND NOT {IS_WAITING}) "
        f"WHERE {where})"
    )


# Not in operators that nobody knows, nor in calls beyond their operators, but for what XNNPACK floors.
_NOBODY_KNOWS = "kind = 'operator' AND NOT known"
_KNOWN_SHARE = (
    f"(1 - ({_time(_NOBODY_KNOWS)} + greatest({_time(_CALLS)} "
    f"- 1000 * (SELECT count(*) FROM operator_facts WHERE run_id = $run_id AND {_OF_XNNPACK}), 0)) "
    f"/ {_inference()})"
)
# Times are from hardware or a reference; claims about SME2 are never made about a reference.
_TIMED = "(SELECT fidelity <> 'emulated' FROM runs WHERE run_id = $run_id)"
_HARDWARE = "(SELECT fidelity = 'hardware' FROM runs WHERE run_id = $run_id)"
_NO_REFERENCE = "(SELECT fidelity <> 'reference' FROM runs WHERE run_id = $run_id)"


def _both(*conditions: str) -> str:
    return "SELECT " + " AND ".join(conditions)


# What all the numbers of an insight rest on.
_TRACED = "FROM inferences WHERE run_id = $run_id AND pass = 'etdump' AND NOT is_warmup"
MEANS = Claim(
    "run {run_id} on {device}: means over {rounds} rounds{left_out}, {inferences} inferences with "
    "tracer{busy}",
    _both(
        _TIMED,
        f"(SELECT count(DISTINCT round) = $rounds AND count(*) = $inferences {_TRACED})",
        "($disturbed > 0) = ($left_out <> '')",
        "(SELECT starts_with($device, coalesce(nullif(device, ''), 'a device that is not known')) "
        "AND ($busy = '') = (coalesce(len(flags), 0) = 0) FROM runs WHERE run_id = $run_id)",
    ),
)
LEFT_OUT = Claim(
    " ({count} of them disturbed and left out)",
    "SELECT count(*) FILTER (disturbed) = $count FROM traced_rounds WHERE run_id = $run_id",
)
BUSY = Claim(
    "; the machine was not quiet ({kinds}), which raises means",
    "SELECT len(flags) > 0 FROM runs WHERE run_id = $run_id",
)
ONLY_KERNELS = Claim(
    "run {run_id}: emulated, so kernels are real and times mean nothing",
    "SELECT fidelity = 'emulated' FROM runs WHERE run_id = $run_id",
)

# What acting on an insight can gain. Operators are identified by delegate and position.
_AT = "list_contains($places, coalesce(delegate::VARCHAR, '') || '|' || position::VARCHAR)"
_OPERATORS_AT = f"kind = 'operator' AND {_AT}"
GAIN = Claim(
    "at most {ms:.3f} ms, {share:.1%} of the inference",
    _both(
        _TIMED,
        _is(f"$ms * 1e6 / {_inference()}", "share", _SHARE),
        f"$ms * 1e6 <= if(len($places) > 0, {_time(_OPERATORS_AT)} + {_floored(_OPERATORS_AT)}, "
        f"{_inference()}) + {_NS}",
    ),
)
GAIN_WORK = Claim(
    "{text} of the multiply-accumulates",
    "SELECT ($text = '100%') <= ($share = 1) AND ($text = '0%') <= ($share = 0) "
    "AND abs(regexp_extract($text, '[0-9]+')::DOUBLE / 100 - $share) <= 0.01 "
    f"AND abs(sum(macs) FILTER ({_AT}) / sum(macs) - $share) < 1e-9 AND count(*) = count(macs) "
    f"FROM operator_facts WHERE run_id = $run_id AND {_MATRIX}",
)

GAIN_INSTRUCTIONS = Claim(
    "{share:.0%} of the instructions",
    _both(f"{_work()} > 0", _is(f"{_work(_AT)} / {_work()}", "share", _SHARE)),
)

# Heavy operators.
HEAVY = Claim(
    "{name} takes {least}{share:.1%} of the inference",
    _both(
        _TIMED,
        _is(f"{_time(_HERE)} / {_inference()}", "share", _SHARE),
        f"$share > 0.05 AND ($least = '') = ({_floored(_HERE)} < 0.01 * {_inference()} OR {_time(_CALLS)} "
        f"< 0.01 * {_inference()})",
        # Where XNNPACK has no real name, the program's comes first and XNNPACK's follows in brackets.
        _fact("name = $name OR ends_with($name, ' (' || name || ')')"),
    ),
)
HEAVY_TIME = Claim("{ms:.3f} ms", _both(_TIMED, _is(f"{_time(_HERE)} / 1e6", "ms", _NS / 1e6)))
RAN_IN_SOME = Claim(
    "run by {ran} of {inferences} inferences, for {ms:.3f} ms in each",
    _both(
        _TIMED,
        f"(SELECT count(*) = $inferences AND $ran < $inferences {_TRACED})",
        f"(SELECT count(*) = $ran FROM timeline WHERE run_id = $run_id AND NOT is_warmup AND {_HERE})",
        _is(f"{_when_run(_HERE)} / 1e6", "ms", _NS / 1e6),
    ),
)
RATE = Claim(
    "{millions:.1f} million multiply-accumulates at {rate:.1f} {unit}",
    _both(
        _TIMED,
        _fact(
            "abs(macs / 1e6 - $millions) < 1e-9 AND abs(2 * macs / mean_ns - $rate) < 1e-6 "
            "AND $unit = if(regexp_matches(coalesce(data_type, ''), '^P?Q'), 'GOP/s', 'GFLOP/s')"
        ),
        # Below the resolution of the clock there is no rate.
        f"((SELECT bool_and(backend <> 'xnnpack') FROM operator_facts WHERE run_id = $run_id AND {_HERE}) "
        f"OR {_when_run(_HERE)} >= 1000)",
    ),
)
TIME_OFF = Claim(
    "{ms:.3f} ms with SME2 off",
    f"SELECT {_is(_time(_HERE, 'off_run_id') + ' / 1e6', 'ms', _NS / 1e6)} "
    "AND (SELECT sme2 = 'off' AND fidelity = 'hardware' FROM runs WHERE run_id = $off_run_id)",
)
SAMPLED_IN_SME = Claim(
    "{sme} of {told} samples in SME kernels",
    _both(
        _NO_REFERENCE,
        _fact("certain_sme_samples = $sme AND telling_samples = $told AND on_sme_unit = 'on' AND $sme > 0"),
    ),
)
COUNTED_ON_UNIT = Claim(
    "on the SME unit: it did {macs_on_unit:,} of {macs_executed:,} multiply-accumulates there",
    _both(
        _NO_REFERENCE,
        _fact(
            "macs_on_unit = $macs_on_unit AND macs_executed = $macs_executed AND on_sme_unit = 'on' "
            "AND $macs_on_unit > 0"
        ),
    ),
)
ON_BY_NAME = Claim(
    "on the SME unit by its name",
    _both(_NO_REFERENCE, _fact("on_sme_unit = 'on' AND sme2_evidence = 'name'")),
)
OFF_UNIT = Claim("off the SME unit", _both(_NO_REFERENCE, _fact("on_sme_unit = 'off'")))
UNIT_NOT_KNOWN = Claim(
    "unknown whether on the SME unit", _both(_NO_REFERENCE, _fact("on_sme_unit = 'unknown'"))
)
# The same by work. Names of instructions are those of the architecture.
_SOME_WORK = f"{_work()} > 0"
HEAVY_WORK = Claim(
    "{name} executes {share:.1%} of the instructions",
    _both(
        _SOME_WORK,
        _is(f"{_work(_HERE)} / {_work()}", "share", _SHARE),
        "$share > 0.05",
        _fact("name = $name OR ends_with($name, ' (' || name || ')')"),
    ),
)
WORK_TIMES = Claim("{count:,} instructions", _both(f"{_work(_HERE)} = $count"))
WORK_OFF = Claim(
    "{count:,} with SME2 off",
    _both(
        f"{_work(_HERE, 'off_run_id')} = $count",
        "(SELECT sme2 = 'off' FROM runs WHERE run_id = $off_run_id)",
    ),
)
_OF_CLASS = "class = '{}' AND " + _HERE
WORK_ON_UNIT = Claim(
    "{outer_products:,} outer products in {streaming_entries:,} entries of streaming mode",
    _both(
        f"{_work(_OF_CLASS.format('outer product'))} = $outer_products",
        f"{_work(_OF_CLASS.format('streaming entry'))} = $streaming_entries",
    ),
)
FILL = Claim(
    "{share:.0%} of the multiply-accumulates done are the model's, the rest fills tiles and vectors",
    _both(
        _is(
            f"(SELECT macs FROM operator_facts WHERE run_id = $run_id AND {_HERE}) "
            f"/ {_work(_HERE, what='multiply_accumulates')}",
            "share",
            _SHARE,
        )
    ),
)
_PACKS = f"role = 'pack' AND {_HERE}"
PACKING = Claim(
    ", {share:.0%} of which pack", _both(_is(f"{_work(_PACKS)} / {_work(_HERE)}", "share", _SHARE))
)
LIGHT_WORK = Claim(
    "The {count} operators below {limit:.0%} execute {share:.0%} together.",
    _both(
        _SOME_WORK,
        f"(SELECT count(*) = $count AND abs(coalesce(sum(instructions), 0) / {_work()} - $share) <= 1e-6 "
        f"FROM operator_facts WHERE run_id = $run_id "
        f"AND coalesce(instructions, 0) <= $limit * {_work()})",
    ),
)
LIGHT = Claim(
    "The {count} operators below {limit:.0%} take {share:.0%} together.",
    "SELECT count(*) = $count AND abs(coalesce(sum(share), 0) - $share) <= 1e-6 "
    "FROM operator_facts WHERE run_id = $run_id AND share <= $limit",
)
NOT_MATRIX = Claim(
    "It is {category}: no SME2 kernel would change it. ",
    _both(_NO_REFERENCE, _fact(f"category = $category AND NOT {_MATRIX} AND known")),
)
NOT_KNOWN = Claim(
    "What it computes is not known, so neither is whether SME2 has a kernel for it. ",
    _both(_NO_REFERENCE, _fact("NOT known")),
)
ON_UNIT = Claim(
    "It is not a missed kernel: it has an SME2 kernel. ", _both(_NO_REFERENCE, _fact("on_sme_unit = 'on'"))
)
_MISSED = f"FROM missed_sme2 WHERE run_id = $run_id AND {_HERE}"
UNKNOWN_UNIT = Claim(
    "Whether it runs on the SME unit is unknown. ",
    _both(_NO_REFERENCE, f"(SELECT bool_and(on_sme_unit = 'unknown') {_MISSED})"),
)
NO_HELP = Claim(
    "A CPU with SME2 does not help as it stands: {reason}. ",
    _both(_NO_REFERENCE, f"(SELECT bool_and(on_sme_unit = 'off' AND reason = $reason) {_MISSED})"),
)
IN_REACH = Claim(
    "It is not out of SME2's reach: it has an SME2 kernel under emulation. ",
    f"SELECT (SELECT bool_and(on_sme_unit = 'on') FROM operator_facts WHERE run_id = $evidence_run_id "
    f"AND {_HERE}) "
    "AND (SELECT fidelity = 'emulated' AND sme2 = 'on' FROM runs WHERE run_id = $evidence_run_id)",
)
NOT_SHOWN = Claim(
    "Whether SME2 would take it is not shown. ",
    _both(
        _NO_REFERENCE,
        "(SELECT sme2 = 'off' FROM runs WHERE run_id = $run_id)",
        f"NOT EXISTS (SELECT 1 {_MISSED})",
        "NOT EXISTS (SELECT 1 FROM emulated_twin WHERE run_id = $run_id)",
    ),
)

# Operators outside delegates, and overheads.
PORTABLE = Claim(
    "{count} {operators} outside delegates: {names}",
    f"SELECT {_count(_PORTABLE)} = $count AND $count > 0",
)
PORTABLE_TIME = Claim(
    "Together: {ms:.3f} ms. ",
    _both(_TIMED, _is(_time("kind = 'operator' AND backend = 'portable'") + " / 1e6", "ms", _NS / 1e6)),
)
SPLITS = Claim(
    "One between delegates splits them: there are {calls} delegate calls.",
    "SELECT max(calls) = $calls AND $calls > 1 FROM (SELECT count(*) AS calls FROM timeline WHERE "
    "run_id = $run_id "
    "AND NOT is_warmup AND kind = 'delegate_overhead' GROUP BY round, iteration)",
)
DELEGATED = Claim(
    "The other {count} operators are delegated.",
    f"SELECT {_count(_DELEGATED)} = $count",
)
DELEGATE_OVERHEAD = Claim(
    "{which} delegate {cost} at most {ms:.3f} ms beyond their operators",
    _both(
        _TIMED,
        _is(_time(_CALLS) + " / 1e6", "ms", _NS / 1e6),
        "$ms > 0",
        f"{_rows_of_an_inference('max', _CALLS)} = $calls AND ends_with($which, $calls::VARCHAR)",
        f"(starts_with($which, 'Up to') OR {_rows_of_an_inference('min', _CALLS)} = $calls)",
    ),
)
PER_CALL = Claim(
    "At most {ms:.3f} ms per call. ",
    _both(
        _TIMED,
        _is(_time(_CALLS) + " / $calls / 1e6", "ms", _NS / 1e6),
        f"{_rows_of_an_inference('min', _CALLS)} = $calls",
        f"{_rows_of_an_inference('max', _CALLS)} = $calls",
    ),
)
FLOORED = Claim(
    "XNNPACK floors its times, so up to {ms:.3f} ms of it may be its operators' own ({which}, a microsecond "
    "each).",
    _both(
        _TIMED,
        f"{_rows_of_an_inference('max', _OF_XNNPACK)} = $count AND $count > 0",
        f"(starts_with($which, 'up to') OR {_rows_of_an_inference('min', _OF_XNNPACK)} = $count)",
        "contains($which, $count::VARCHAR || ' operator')",
        "$ms <= $count / 1e3 + 1e-9",
    ),
)
NOT_FLOORED = Claim(
    "None of it is rounding by XNNPACK: none of its operators ran.",
    _both(_TIMED, _count(_OF_XNNPACK) + " = 0"),
)
FRAMEWORK = Claim(
    "ExecuTorch itself takes {ms:.3f} ms",
    _both(_TIMED, _is(_time(_FRAMEWORK) + " / 1e6", "ms", _NS / 1e6)),
)
LEANER = Claim(
    "A leaner runtime brings no more than this: {share:.1%} of the inference.",
    _both(
        _TIMED,
        _is(f"{_time(_FRAMEWORK)} / {_inference()}", "share", _SHARE),
    ),
)

# Off the SME unit.
_OF_REASON = "FROM missed_sme2 WHERE run_id = $run_id AND reason = $reason AND basis = $basis"
_IS_OF_REASON = (
    f"EXISTS (SELECT 1 {_OF_REASON} AND missed_sme2.backend = timeline.backend "
    "AND missed_sme2.delegate IS NOT DISTINCT FROM timeline.delegate "
    "AND missed_sme2.position = timeline.position)"
)
STAYED = Claim(
    "{count} CONV or GEMM {operators} {verb} off the SME unit: {reason}{predicted}",
    f"SELECT count(*) = $count AND bool_and(on_sme_unit = 'off' OR basis = 'predicted') AND $reason "
    "<> 'unknown' "
    f"AND bool_and((sme2 = 'off') = ($verb = 'would stay')) AND bool_and(fidelity <> 'reference') "
    f"{_OF_REASON}",
)
UNIT_UNKNOWN = Claim(
    "Whether {count} CONV or GEMM {operators} ran on the SME unit: unknown",
    f"SELECT count(*) = $count AND bool_and(on_sme_unit = 'unknown') {_OF_REASON} AND fidelity <> "
    "'reference'",
)
MISSED_TIME = Claim(
    " Together: {ms:.3f} ms.",
    f"SELECT bool_and(fidelity = 'hardware' AND on_sme_unit <> 'unknown') "
    f"AND {_is(_time(_IS_OF_REASON) + ' / 1e6', 'ms', _NS / 1e6)} {_OF_REASON}",
)
MISSED_SAMPLES = Claim(
    "{sme} of their {told} samples in kernels that compute are in SME kernels",
    f"SELECT sum(telling_samples) = $told AND sum(certain_sme_samples) = $sme {_OF_REASON}",
)
MISSED_WORK = Claim(
    "{macs_on_unit:,} of the {macs_executed:,} multiply-accumulates that they did were done on the SME unit",
    f"SELECT sum(macs_executed) = $macs_executed AND sum(macs_on_unit) = $macs_on_unit {_OF_REASON}",
)
NOT_MISSED = Claim(
    "{count} of {total} CONV and GEMM operators are on the SME unit ({executed} seen there, "
    "{named} by name): "
    "they are not what is missed.",
    f"SELECT {_count(_MATRIX)} = $total AND {_count(_IS_ON)} = $count "
    f"AND {_count(_EXECUTED)} = $executed "
    "AND $named = $count - $executed",
)
REST_UNDER_EMULATION = Claim(
    "The other {count} of {total} CONV and GEMM operators take SME2 kernels under emulation.",
    f"SELECT {_count(_MATRIX)} = $total AND (SELECT count(*) FROM operator_facts WHERE run_id = "
    "$evidence_run_id "
    "AND on_sme_unit = 'on') >= $count AND $count = $total - (SELECT count(*) FROM missed_sme2 WHERE "
    "run_id = $run_id)",
)
REST_NOT_SHOWN = Claim(
    "Nothing about the other {count} of {total} CONV and GEMM operators: only a run with SME2 on can "
    "tell, and "
    "an emulated one will do.",
    f"SELECT {_count(_MATRIX)} = $total AND (SELECT sme2 = 'off' FROM runs WHERE run_id = $run_id) "
    "AND NOT EXISTS (SELECT 1 FROM emulated_twin WHERE run_id = $run_id)",
)

# From SME2 off to on.
_CATEGORY = "coalesce(category, 'Overhead') = "


def _share(category: str, run: str) -> str:
    return f"{_time(_CATEGORY + category, run)} / {_inference(run)}"


_OFF, _ON = "off_run_id", "on_run_id"
_PAIR = (
    "(SELECT count(DISTINCT session_id) = 1 AND count(*) = 2 AND bool_and(fidelity = 'hardware') "
    "FROM runs WHERE run_id IN ($off_run_id, $on_run_id))"
)


def _shows(arm: str) -> str:
    """Whether a text of a share, or of what it may be at least and at most, has the one that was reported."""
    return f"contains(${arm}_text, format('{{:.0f}}%', 100 * ${arm}_share))"


def _largest(category: str, arm: str, run: str) -> str:
    share = f"${arm}_share"
    return (
        f"{share} + 1e-6 >= (SELECT max(share) FROM category_summary WHERE run_id = ${run}) "
        f"AND {_is(_share(category, run), share[1:], _SHARE)} AND {_shows(arm)}"
    )


STAYS_LARGEST = Claim(
    "{category} stays the largest part: {off_text} of the inference with SME2 off, {on_text} with it on",
    _both(_PAIR, _largest("$category", "off", _OFF), _largest("$category", "on", _ON)),
)
MOVED = Claim(
    "The bottleneck moved from {before} ({off_text} of the inference with SME2 off) to {after} "
    "({on_text} with it on)",
    _both(
        _PAIR,
        _largest("$before", "off", _OFF),
        _largest("$after", "on", _ON),
        "$before <> $after",
    ),
)
LARGEST_NOT_KNOWN = Claim(
    "Whether the bottleneck moved is not known: whole microseconds hide which part is the largest",
    _both(_PAIR, f"{_time(_CALLS, _OFF)} + {_time(_CALLS, _ON)} > 0"),
)
CHANGE = Claim(
    "{category} {off_ms_text} -> {on_ms_text} ms ({off_text} -> {on_text})",
    _both(
        _PAIR,
        *(
            f"{_is(_time(_CATEGORY + '$category', run) + ' / 1e6', f'{arm}_ms', _NS / 1e6)} "
            f"AND contains(${arm}_ms_text, format('{{:.3f}}', ${arm}_ms)) AND {_shows(arm)}"
            for arm, run in (("off", _OFF), ("on", _ON))
        ),
    ),
)
INFERENCE = Claim(
    "The inference with tracer: {off_ms:.3f} -> {on_ms:.3f} ms.",
    _both(
        _PAIR,
        *(
            _is(f"{_inference(run)} / 1e6", f"{arm}_ms", _NS / 1e6)
            for arm, run in (("off", _OFF), ("on", _ON))
        ),
    ),
)
# What operators that are not known compute may be CONV or GEMM as well.
_UNKNOWN = _time(_NOBODY_KNOWS)
_ALL_KNOWN = f"(contains(lower($part), 'known') OR {_UNKNOWN} = 0)"
_IS_LEFT = _is(f"{_time(_MATRIX)} / {_inference()}", "left_share", _SHARE) + f" AND {_shows('left')}"
LEFT = Claim(
    "{part} are {left_text} of what is left: faster kernels for them bring no more than {speedup:.2f}x.",
    _both(
        _HARDWARE,
        _ALL_KNOWN,
        _IS_LEFT,
        f"$speedup * ({_inference()} - {_time(_MATRIX)}) >= {_inference()} - {_NS}",
    ),
)
LEFT_OPEN = Claim(
    "{part} are {left_text} of what is left; what faster kernels for them bring at most is not known.",
    _both(_HARDWARE, _ALL_KNOWN, _IS_LEFT, f"({_may_be_most(_MATRIX)} OR {_KNOWN_SHARE} < 0.8)"),
)


def _work_share(category: str, run: str, value: str) -> str:
    return _is(f"{_work(f'category = {category}', run)} / {_work(run=run)}", value, _SHARE)


def _most_work(category: str, run: str, value: str) -> str:
    return (
        f"{_work_share(category, run, value)} AND ${value} + 1e-6 >= "
        f"(SELECT max(instructions_share) FROM category_summary WHERE run_id = ${run})"
    )


_COUNTED_PAIR = (
    "(SELECT count(DISTINCT session_id) = 1 AND count(*) = 2 AND bool_and(fidelity = 'emulated') "
    "FROM runs WHERE run_id IN ($off_run_id, $on_run_id))"
)
WORK_STAYS = Claim(
    "{category} stays the largest part of the work: {off_share:.0%} of the instructions with SME2 off, "
    "{on_share:.0%} with it on",
    _both(
        _COUNTED_PAIR,
        _most_work("$category", _OFF, "off_share"),
        _most_work("$category", _ON, "on_share"),
    ),
)
WORK_MOVED = Claim(
    "The largest part of the work moved from {before} ({off_share:.0%} of the instructions with SME2 off) to "
    "{after} ({on_share:.0%} with it on)",
    _both(
        _COUNTED_PAIR,
        _most_work("$before", _OFF, "off_share"),
        _most_work("$after", _ON, "on_share"),
        "$before <> $after",
    ),
)
WORK_IN_ALL = Claim(
    "{off_count:,.0f} -> {on_count:,.0f} instructions of an inference, which are work and not time",
    _both(_COUNTED_PAIR, f"{_work(run=_OFF)} = $off_count AND {_work(run=_ON)} = $on_count", "$on_count > 0"),
)
WORK_CHANGE = Claim(
    "{category} {off_count:,.0f} -> {on_count:,.0f} ({off_share:.0%} -> {on_share:.0%})",
    _both(
        *(
            f"{_work('category = $category', run)} = ${arm}_count "
            f"AND {_work_share('$category', run, f'{arm}_share')}"
            for arm, run in (("off", _OFF), ("on", _ON))
        )
    ),
)
KERNELS = Claim(
    "{on} of {total} CONV and GEMM operators are on the SME unit with SME2 on{unsure}, {off} with it off",
    f"SELECT {_count(_MATRIX, _ON)} = $total AND {_count(_IS_ON, _ON)} = $on "
    f"AND {_count(_IS_UNKNOWN, _ON)} = $unknown AND {_count(_BY_NAME, _ON)} = $by_name "
    f"AND {_count(_IS_ON, _OFF)} = $off AND ($unknown + $by_name = 0) = ($unsure = '')",
)
NO_KERNEL = Claim(
    "That SME2 speeds up CONV or GEMM of this model: none of them is on the SME unit.",
    f"SELECT {_count(_NOT_OFF, _ON)} = 0 AND {_count(_MATRIX, _ON)} > 0 AND {_count('NOT known', _ON)} = 0",
)
NO_MATRIX = Claim(
    "That SME2 speeds up this model: it has no CONV and no GEMM.",
    f"SELECT {_count(_MATRIX, _ON)} = 0 AND {_count('NOT known', _ON)} = 0",
)
SOME_NOT_KNOWN = Claim(
    "Nothing: what is computed by {count} of its operators is not known, so neither is whether SME2 has a "
    "kernel for it.",
    f"SELECT {_count('NOT known', _ON)} = $count AND $count > 0",
)
MATRIX_SAMPLES = Claim(
    "SME2 {state}: {sme} of the {told} samples in kernels that compute CONV and GEMM are on SME",
    f"SELECT sum(telling_samples) = $told AND sum(certain_sme_samples) = $sme AND bool_and(sme2 = $state) "
    f"FROM operator_facts WHERE run_id = $run_id AND {_MATRIX}",
)

MATRIX_WORK = Claim(
    "SME2 {state}: {macs_on_unit:,} of the {macs_executed:,} multiply-accumulates that CONV and GEMM did "
    "were done on the SME unit",
    "SELECT sum(macs_executed) = $macs_executed AND sum(macs_on_unit) = $macs_on_unit "
    f"AND bool_and(sme2 = $state) FROM operator_facts WHERE run_id = $run_id AND {_MATRIX}",
)

# Upper bounds.
_PART = _time("list_contains($categories, category)")
# A ceiling must hold whatever the whole microseconds hide: it is never below what the times show.
_HOLDS = f"$speedup >= 1 AND $speedup * ({_inference()} - {_PART}) >= {_inference()} - {_NS}"
CEILING = Claim(
    "Ceiling: if {part} took no time, at least {ms:.3f} ms would be left, {speedup:.2f}x at most",
    _both(_HARDWARE, _ALL_KNOWN, f"$ms > 0 AND $ms * 1e6 <= {_inference()} - {_PART} + {_NS}", _HOLDS),
)
NO_CEILING = Claim(
    "No ceiling is known: whole microseconds hide how much of the inference {part} takes",
    _both(_HARDWARE, _ALL_KNOWN, _may_be_most("list_contains($categories, category)")),
)
LITTLE_IS_KNOWN = Claim(
    "No ceiling is known: only {known_share:.0%} of the inference is in operators that are known",
    _both(_HARDWARE, f"$known_share < 0.8 AND {_is(_KNOWN_SHARE, 'known_share', _SHARE)}"),
)
PART = Claim(
    "{part} {take} {least}{ms:.3f} of {inference_ms:.3f} ms (Amdahl's law).",
    _both(
        _HARDWARE,
        _ALL_KNOWN,
        _is(f"{_PART} / 1e6", "ms", _NS / 1e6),
        _is(f"{_inference()} / 1e6", "inference_ms", _NS / 1e6),
    ),
)
NO_MORE = Claim("More than {speedup:.2f}x from {remedy}.", _both(_HARDWARE, _ALL_KNOWN, _HOLDS))
MAY_BE_MORE = Claim(
    " What {which} not known, and takes {ms:.3f} ms: there may be more to win.",
    _both(
        _HARDWARE,
        f"{_count('NOT known')} = $count AND ($count = 1) = ($which = '1 operator computes is')",
        "starts_with($which, $count::VARCHAR || ' operator')",
        _is(f"{_UNKNOWN} / 1e6", "ms", _NS / 1e6),
        "$ms > 0",
    ),
)
# How long the operators that would be on the unit take now, and what would decide how long they take there.
_ON_UNIT = """(
    SELECT
        per_inference_ns,
        list_transform(string_split(output_shape, 'x'), lambda size: size::DOUBLE) AS output,
        list_transform(string_split(input_shape, 'x'), lambda size: size::DOUBLE) AS input,
        CASE
            WHEN regexp_matches(data_type, '^P?Q') THEN [$integer, 1]
            WHEN regexp_matches(data_type, '^P?F16') THEN [$half, 2]
            ELSE [$single, 4]
        END AS kind,
        output[-1] AS n,
        -- The products of a batch share neither tiles nor weights.
        if(node_kind = 'XNNBatchMatrixMultiply', output[-2], list_product(output) / n) AS m,
        2 * macs / kind[1] AS peak_ns,
        (list_product(input) + list_product(output) + macs / m) * kind[2] / $gb_s AS memory_ns,
        2 * macs / n * kind[2] / $gb_s AS packing_ns,
        -- Two tiles by two, filled or not.
        greatest(ceil(m / $tile), 2) * $tile / m * greatest(ceil(n / $tile), 2) * $tile / n AS idle
    FROM operator_facts AS facts
    WHERE run_id = $run_id AND category IN ('CONV', 'GEMM') AND macs > 0
    AND input_shape IS NOT NULL AND output_shape IS NOT NULL AND NOT EXISTS (
        FROM missed_sme2 AS missed
        WHERE missed.run_id = $run_id AND missed.backend = facts.backend
        AND missed.delegate IS NOT DISTINCT FROM facts.delegate AND missed.position = facts.position
    )
)"""


def _speedup_on_unit(took_ns: str) -> str:
    return (
        f"(SELECT {_inference()} / ({_inference()} - sum(per_inference_ns) + sum({took_ns})) FROM {_ON_UNIT})"
    )


_PROJECTED = _both(
    _HARDWARE,
    "(SELECT sme2 = 'off' AND len(cpu_features_seen) > 0 AND NOT list_contains(cpu_features_seen, 'sme2') "
    "FROM runs WHERE run_id = $run_id)",
    _is(_speedup_on_unit("greatest(peak_ns, memory_ns)"), "high", 1e-6),
    _is(_speedup_on_unit("peak_ns * idle + memory_ns + packing_ns"), "low", 1e-6),
)
PROJECTION = Claim(
    "Projection, not a measurement: {low:.2f}x to {high:.2f}x, if this CPU had the SME unit of an {unit}",
    _PROJECTED,
)
ON_OTHER_UNIT = Claim(" With that of an {unit}: {low:.2f}x to {high:.2f}x.", _PROJECTED)
IF_ON_UNIT = Claim(
    "{count} of {total} CONV and GEMM operators ({ms:.3f} of {inference_ms:.3f} ms) would run on the unit: "
    "at best at its published peak, at worst with tiles that its shapes leave idle, inputs packed in memory, "
    "and no overlap. All else stays as it is.",
    _both(
        _HARDWARE,
        f"{_count(_MATRIX)} = $total AND $count BETWEEN 1 AND $total",
        f"$ms * 1e6 <= {_time(_MATRIX)} + {_NS}",
        _is(f"{_inference()} / 1e6", "inference_ms", _NS / 1e6),
    ),
)
# Arithmetic and definitions: true whatever was measured.
_EMULATED_ON = "SELECT fidelity = 'emulated' AND sme2 = 'on' FROM runs WHERE run_id = $evidence_run_id"
AS_EMULATED = Claim("as in the emulated run {evidence_run_id}", _EMULATED_ON)
ELIGIBLE = Claim("those that take SME2 kernels in the emulated run {evidence_run_id}", _EMULATED_ON)
UNKNOWN_LEFT_OUT = Claim(
    "; {count} for which that is unknown are left out",
    "SELECT count(*) = $count FROM missed_sme2 WHERE run_id = $run_id AND on_sme_unit = 'unknown'",
)
_NOT_COUNTED = "(coalesce(macs, 0) = 0 OR input_shape IS NULL OR output_shape IS NULL)"
UNCOUNTED_LEFT_OUT = Claim(
    "; {count} whose work or shapes are not known are left out",
    f"SELECT $count BETWEEN 1 AND {_count(_MATRIX + ' AND ' + _NOT_COUNTED)}",
)
NOT_MORE = Claim(
    "More than {high:.2f}x from a unit of that peak and memory. It does not say what this model gains on a "
    "given device, whose cores, caches and clocks are not this CPU's: measure there.",
    _PROJECTED,
)
OTHER_LAYOUT = Claim(
    "Nothing in order or shape suggests that the other {count} could go.", "SELECT $count >= 0"
)

# Layout.
LAYOUT = Claim(
    "{count} of {total} transposes and conversions could go or be moved",
    f"SELECT {_count('list_contains($kinds, op_type)')} = $total AND $count BETWEEN 1 AND $total",
)
LAYOUT_PAIR = Claim(
    "{what}{border}",
    "SELECT count(*) = 2 AND (count(DISTINCT coalesce(delegate, -1)) = 2) = ($border <> '') "
    # Both in one inference, at least once.
    "AND (SELECT bool_or(ran = 2) FROM (SELECT count(*) AS ran FROM timeline JOIN operator_facts AS pair "
    "ON pair.run_id = timeline.run_id AND pair.backend = timeline.backend "
    "AND pair.delegate IS NOT DISTINCT FROM timeline.delegate AND pair.position = timeline.position "
    "WHERE timeline.run_id = $run_id AND NOT is_warmup AND list_contains($orders, execution_order) "
    "GROUP BY round, iteration)) "
    "FROM operator_facts WHERE run_id = $run_id AND list_contains($orders, execution_order)",
)
