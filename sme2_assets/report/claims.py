"""What reports, the overview and the terminal say; the predicates go back to rounds and operators."""

from __future__ import annotations

from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.joint_steps import LEAST_WATCHED, MOST_OF_THEM

# The comparison of the whole model of a session.
_MODEL = "FROM comparisons WHERE session_id = $session_id AND level = 'model'"
# The ratio of each round, in a different way from the comparison: straight from the processes.
_RATIOS = (
    "(SELECT {pick} FROM latency_rounds AS a JOIN latency_rounds AS b USING (round) "
    "WHERE a.run_id = a_run_id AND b.run_id = b_run_id)"
)
_MIDDLE = _RATIOS.format(pick="median(a.median_ns / b.median_ns)")
_LEAST = _RATIOS.format(pick="min(a.median_ns / b.median_ns)")
_MOST = _RATIOS.format(pick="max(a.median_ns / b.median_ns)")
_RIGHT = (
    "(SELECT count(*) = 2 AND bool_and(coalesce(sqnr_db >= sqnr_threshold_db, true)) FROM runs "
    "WHERE run_id IN (a_run_id, b_run_id))"
)

# Faster or slower needs hardware, right outputs and an interval on one side of 1; "no difference" needs an
# interval that contains 1.
_SHOWS = f"""CASE $verdict
        WHEN 'faster' THEN fidelity = 'hardware' AND {_RIGHT} AND speedup_low > 1 AND {_MIDDLE} > 1
        WHEN 'slower' THEN fidelity = 'hardware' AND {_RIGHT} AND speedup_high < 1 AND {_MIDDLE} < 1
        WHEN 'no difference' THEN fidelity = 'hardware' AND speedup_low <= 1 AND speedup_high >= 1
        WHEN 'too small to count' THEN fidelity = 'hardware' AND (speedup_low > 1 OR speedup_high < 1)
        WHEN 'insufficient data' THEN verdict = $verdict
        WHEN 'not comparable' THEN verdict = $verdict AND speedup IS NULL
        ELSE false END"""


def _said(pattern: str) -> str:
    return f"TRY_CAST(regexp_extract($text, '{pattern}', 1) AS DOUBLE)"


def _says_ratio(ratio: str, low: str, high: str, n: str) -> str:
    """Each number to two digits at least, and on its side of 1."""
    told = {
        ratio: _said("^([0-9.]+)x "),
        low: _said("[(]([0-9.]+) to "),
        high: _said(" to ([0-9.]+),"),
    }
    return f"{n} = {_said('n=([0-9]+)')} AND " + " AND ".join(
        f"abs({said} - {true}) < 0.00501 AND sign({said} - 1) = sign({true} - 1)"
        for true, said in told.items()
    )


VERDICT = Claim("{verdict}", f"SELECT {_SHOWS} {_MODEL}")
# The answer for a pair: the speedup with its interval, and what it shows.
SHOWN = Claim(
    "Speedup (off / on) {text}: {shown}",
    f"SELECT {_SHOWS} AND starts_with($shown, if($verdict LIKE 'too%', 'too small', $verdict)) "
    f"AND $speedup BETWEEN {_LEAST} - 1e-9 AND {_MOST} + 1e-9 "
    "AND $speedup BETWEEN speedup_low - 1e-9 AND speedup_high + 1e-9 "
    f"AND {_says_ratio('speedup', 'speedup_low', 'speedup_high', 'n')} {_MODEL}",
)
NO_SPEEDUP = Claim(
    "What SME2 does to its time is not known: {verdict}",
    f"SELECT verdict = $verdict AND (speedup_low IS NULL OR verdict = 'insufficient data') {_MODEL}",
)


def _says(text: str) -> str:
    return f"contains($reason, '{text}')"


def _number(pattern: str) -> str:
    return f"TRY_CAST(regexp_extract($reason, '{pattern}', 1) AS DOUBLE)"


_ARMS = "FROM runs WHERE run_id IN (a_run_id, b_run_id)"
_MEAN_RATIO = _RATIOS.format(pick="median(a.mean_ns / b.mean_ns)")
_PAIRED_ROUNDS = _RATIOS.format(pick="count(*)")
# Reasons are made and stored with the verdict. Each kind has a condition of its own, on what was measured and
# not on the words; a kind that is not known here does not hold.
REASON = Claim(
    "{reason}",
    f"""SELECT reason = $reason AND CASE
        WHEN {_says("the 95 % interval")} AND {_says("paired rounds")} THEN
            abs({_number("the 95 % interval ([0-9.]+)")} - speedup_low) < 0.00051
            AND abs({_number("the 95 % interval [0-9.]+ to ([0-9.]+)")} - speedup_high) < 0.00051
            AND {_number("over ([0-9]+) paired rounds")} = {_PAIRED_ROUNDS}
            AND ({_says("lies above 1")} = false OR speedup_low > 1)
            AND ({_says("lies below 1")} = false OR speedup_high < 1)
            AND ({_says("the interval holds 1")} = false OR 1 BETWEEN speedup_low AND speedup_high)
            AND ({_says("slow mode")} = false OR slow_rounds_a + slow_rounds_b > 0)
        WHEN {_says("paired rounds; at least")} THEN speedup_low IS NULL
            AND {_number("^([0-9]+) paired rounds")} = {_PAIRED_ROUNDS}
            AND {_number("at least ([0-9]+)")} > {_PAIRED_ROUNDS}
        WHEN {_says("Emulated times")} THEN fidelity = 'emulated' AND speedup IS NULL
        WHEN {_says("say nothing about SME2")} THEN fidelity = 'reference' AND speedup IS NULL
        WHEN {_says("costs time, yet")} THEN (SELECT bool_or(passes_agree = false) {_ARMS})
        WHEN {_says("the outputs are wrong")}
            THEN (SELECT bool_or(sqnr_db < sqnr_threshold_db OR eager_fault IS NOT NULL) {_ARMS})
        WHEN {_says("The arms do not compute the same")} OR {_says("The outputs of the arms differ")}
            THEN (SELECT bool_or(arms_fault IS NOT NULL OR arms_sqnr_db < sqnr_threshold_db) {_ARMS})
        WHEN {_says("the same kernel in both arms")} THEN placebo_low > 1 OR placebo_high < 1
        WHEN {_says("slow mode")} THEN speedup IS NULL AND slow_rounds_a + slow_rounds_b > 0
        WHEN {_says("the mean one")} THEN speedup IS NULL
            AND {_number("^The median inference gives ([0-9.]+)")}
                BETWEEN {_LEAST} - 0.00501 AND {_MOST} + 0.00501
            AND abs({_number("the mean one ([0-9.]+)")} - {_MEAN_RATIO}) < 0.00501
        WHEN {_says("It is not in every round")} THEN speedup IS NULL
        ELSE false END {_MODEL}""",
)
ROUNDS = Claim("{n}", f"SELECT {_PAIRED_ROUNDS} = $n {_MODEL}")


def _end_shown(place: int, value: str) -> str:
    """Whether an end of the printed interval is the value, and on its side of 1."""
    number = f"string_split($shown, ' to ')[{place}]::DOUBLE"
    return f"abs({number} - {value}) < 0.00051 AND sign({number} - 1) = sign({value} - 1)"


INTERVAL = Claim(
    "{shown}",
    f"SELECT fidelity <> 'emulated' AND $low <= $high AND {_end_shown(1, '$low')} "
    f"AND {_end_shown(2, '$high')} "
    f"AND $low <= {_MOST} + 1e-9 AND $high >= {_LEAST} - 1e-9 {_MODEL}",
)
# The exact signed-rank test of n rounds gives no p below 2 / 2^n.
P_VALUE = Claim("{p:.2g}", f"SELECT $p BETWEEN 2.0 / power(2, {_PAIRED_ROUNDS}) - 1e-12 AND 1 {_MODEL}")
DETECTABLE = Claim(
    "a ratio of {effect:.3f} or more (80 % power)",
    f"SELECT $effect >= coalesce(noise_floor, 1) AND $effect > 1 {_MODEL}",
)
# Of a row of runs: something saw what else the machine did around every round, and nothing was wrong with it.
_QUIET = (
    "(SELECT count(*) > 0 AND bool_and(other_cores IS NOT NULL AND len(environment.flags) = 0) "
    "FROM environment WHERE environment.run_id = runs.run_id)"
)
_ALL_WELL = (
    f"bool_and(fidelity = 'hardware' AND {_QUIET} AND coalesce(steady, true) "
    "AND coalesce(passes_agree, true))"
)
CONFIDENCE = Claim(
    "{level}: {why}",
    f"SELECT confidence = $level AND ($level <> 'high' OR (SELECT {_ALL_WELL} {_ARMS})) "
    "AND ($level = 'high') = contains($why, 'on a quiet machine') "
    f"AND ($level = 'high') = NOT contains($why, 'but') {_MODEL}",
)
DO_NOT_COMPARE = Claim(
    "These times do not compare. {reason}",
    f"SELECT verdict = 'not comparable' AND reason = $reason AND speedup IS NULL {_MODEL}",
)
THRESHOLD = Claim(
    "No difference of less than {share:.1%} counts.",
    "SELECT $share > 0 AND $share + 1e-9 >= coalesce(max(noise_floor), 1) - 1 "
    "FROM comparisons WHERE session_id = $session_id AND level = 'model'",
)
PLACEBO = Claim(
    "{operators} {have} the same kernel in both arms, and together a ratio of {ratio}",
    "SELECT count(*) FILTER (placebo) = $operators AND bool_and(fidelity = 'hardware') "
    "AND bool_and(backend IN ('xnnpack', 'portable')) FILTER (placebo) "
    "AND bool_and(coalesce(sme2_operators_a + sme2_operators_b + sme2_operators_unknown, 0) = 0) "
    "FILTER (placebo) "
    "FROM comparisons WHERE session_id = $session_id AND level = 'operator'",
)

# How much of a run is on the SME unit.
_MATRIX = "FROM operator_facts WHERE run_id = $run_id AND category IN ('CONV', 'GEMM')"
# Of those on the unit, no sample shows these there.
_BY_NAME = (
    "count(*) FILTER (on_sme_unit = 'on' AND sme2_evidence = 'name') = $by_name_alone "
    "AND ($by_name_alone > 0) = ($by_name <> '')"
)
COUNT = Claim(
    "{on_unit} of {matrix_operators}{by_name}{unknown_text}",
    "SELECT count(*) = $matrix_operators AND count(*) FILTER (on_sme_unit = 'on') = $on_unit "
    f"AND {_BY_NAME} "
    "AND count(*) FILTER (on_sme_unit = 'unknown') = $unknown AND ($unknown > 0) = ($unknown_text <> '') "
    f"AND bool_and(fidelity IS DISTINCT FROM 'reference') {_MATRIX}",
)
_ON_UNIT = "coalesce(sum(macs) FILTER (on_sme_unit = 'on'), 0) / sum(macs)"
_NOT_OFF_UNIT = "coalesce(sum(macs) FILTER (on_sme_unit <> 'off'), 0) / sum(macs)"


def _printed(place: int, value: str) -> str:
    """Whether an end of the printed share is the value, to its digits; all or nothing only if it is."""
    text = f"string_split($share, ' to ')[{place}]"
    number = f"(regexp_extract({text}, '[0-9.]+')::DOUBLE / 100)"
    digits = f"len(regexp_extract({text}, '\\.([0-9]+)', 1))"
    return f"""CASE
        WHEN starts_with({text}, 'over ') THEN {value} > {number} AND {value} < 1
        WHEN starts_with({text}, 'under ') THEN {value} > 0 AND {value} < {number}
        ELSE abs({value} - {number}) <= 0.0051 / power(10, {digits})
            AND ({number} = 1) <= ({value} = 1) AND ({number} = 0) <= ({value} = 0) END"""


WORK = Claim(
    "{share} of the multiply-accumulates{without}",
    f"SELECT {_printed(1, _ON_UNIT)} AND {_printed(-1, _NOT_OFF_UNIT)} "
    f"AND ({_ON_UNIT} <> {_NOT_OFF_UNIT}) = contains($share, ' to ') "
    f"AND (count(*) > count(macs)) = ($without <> '') {_MATRIX}",
)
MATRIX_COUNT = Claim(
    "{on_unit} of {matrix_operators} convolutions and matrix products{by_name}{unknown_text}", COUNT.holds
)
# An operator that is not known may be either: then nobody can say that there is none.
_NOT_KNOWN = "(SELECT count(*) FROM operator_facts WHERE run_id = $run_id AND NOT known)"
_NONE = f"SELECT count(*) = 0 AND {_NOT_KNOWN} = 0 {_MATRIX}"
_NONE_KNOWN = f"SELECT count(*) = 0 AND {_NOT_KNOWN} = $count AND $count > 0 {_MATRIX}"
NO_MATRIX = Claim("the model has no convolution or matrix product", _NONE)
NO_KNOWN_MATRIX = Claim(
    "no operator of the model is known to be a convolution or matrix product", _NONE_KNOWN
)
MISSED = Claim(
    "{missed}",
    "SELECT coalesce(string_agg(operators || ' ' || reason, ', ' ORDER BY operators DESC, reason), '-') = "
    "$missed FROM (SELECT reason, count(*) AS operators FROM missed_sme2 WHERE run_id = $run_id "
    "GROUP BY reason)",
)
NOT_ON_UNIT = Claim("not on the SME unit, or unknown: {missed}", MISSED.holds)
NONE_MISSED = Claim(
    "nothing is known to be off the SME unit",
    "SELECT count(*) = 0 FROM missed_sme2 WHERE run_id = $run_id",
)
UNCOUNTED = Claim(
    " that are counted ({uncounted} of the operators are not)",
    f"SELECT count(*) - count(macs) = $uncounted {_MATRIX}",
)
# Of all of them only where all operators are known.
_OF_KNOWN = f"({_NOT_KNOWN} > 0) = ($known <> '') AND ($known <> '') = ($rest <> '')"
REST_NOT_KNOWN = Claim(
    "; what is computed by {count} of the model's operators is not known",
    f"SELECT {_NOT_KNOWN} = $count AND $count > 0",
)
KNOWN_SHARE = Claim(
    "; only {share} of the inference is in operators that are known",
    "SELECT fidelity <> 'emulated' AND known_share < 1 AND abs(known_share "
    "- regexp_extract($share, '[0-9]+')::DOUBLE / 100) <= 0.0101 FROM headroom WHERE run_id = $run_id",
)
EVERY_ON = Claim(
    "Every {known}CONV and GEMM operator is on the SME unit{rest}.",
    f"SELECT count(*) > 0 AND bool_and(on_sme_unit = 'on' AND sme2 = 'on') AND {_OF_KNOWN} {_MATRIX}",
)
NOTHING_SPEAKS_AGAINST = Claim(
    "Nothing shows or predicts that a {known}CONV or GEMM operator would stay off the SME unit{rest}.",
    f"SELECT count(*) > 0 AND bool_and(sme2 = 'off') AND NOT EXISTS (SELECT 1 FROM missed_sme2 WHERE "
    f"run_id = $run_id) AND {_OF_KNOWN} {_MATRIX}",
)
# The same as part of an answer.
RUN_ON_UNIT = Claim(
    "{on_unit} of {matrix_operators} matrix operators{work} run on the SME unit{arm}{by_name}",
    "SELECT count(*) = $matrix_operators AND count(*) FILTER (on_sme_unit = 'on') = $on_unit "
    f"AND {_BY_NAME} AND count(*) > 0 AND bool_and(fidelity IS DISTINCT FROM 'reference') {_MATRIX}",
)
NO_SAMPLE_SHOWS = Claim(
    " ({count} by name alone: no sample shows it)",
    "SELECT count(*) FILTER (on_sme_unit = 'on' AND certain_sme_samples = 0 AND macs_on_unit IS NULL) = "
    f"$count {_MATRIX}",
)
NOTHING_FOR_UNIT = Claim(
    "nothing in it is for the SME unit: it has no convolution and no matrix product", _NONE
)
NOTHING_KNOWN_FOR_UNIT = Claim(
    "nothing in it is known to be for the SME unit: what is computed by {count} of its operators is not "
    "known",
    _NONE_KNOWN,
)
STAYS_OFF = Claim(
    "{which} {why}",
    "SELECT count(*) = $count AND bool_and(on_sme_unit = 'off') "
    "AND ($count = 1) = starts_with($which, 'the ') "
    "AND ($count = 1 OR starts_with($which, $count::VARCHAR || ' ')) "
    "FROM missed_sme2 WHERE run_id = $run_id AND reason = $reason",
)
UNKNOWN_OF = Claim(
    "{unknown} of {matrix_operators} unknown",
    f"SELECT count(*) = $matrix_operators AND count(*) FILTER (on_sme_unit = 'unknown') = $unknown {_MATRIX}",
)
NO_CONV_OR_GEMM = Claim("The model has no CONV or GEMM operator.", _NONE)
NO_KNOWN_CONV_OR_GEMM = Claim(
    "The model has no known CONV or GEMM operator: what is computed by {count} of its operators is not "
    "known.",
    _NONE_KNOWN,
)
NO_SAMPLE_TELLS = Claim(
    "SME2 {state}: no sample shows which kernels computed CONV and GEMM.",
    f"SELECT coalesce(sum(telling_samples), 0) = 0 {_MATRIX} AND sme2 = $state",
)
NAMES_TELL = Claim(
    "SME2 {state}: no sample shows which kernels computed CONV and GEMM; the names of {named} of {count} "
    "say SME2.",
    "SELECT coalesce(sum(telling_samples), 0) = 0 AND count(*) = $count AND $named > 0 "
    f"AND count(*) FILTER (sme2_evidence = 'name') = $named {_MATRIX} AND sme2 = $state",
)
# About several runs of one model.
_OF_RUNS = "FROM operator_facts WHERE list_contains($run_ids, run_id) AND category IN ('CONV', 'GEMM')"
_OF_KNOWN_IN_RUNS = (
    "($known <> '') = EXISTS (SELECT 1 FROM operator_facts WHERE list_contains($run_ids, run_id) "
    "AND NOT known)"
)
ALL_ON = Claim(
    "Every {known}convolution and matrix product of {model} at {precisions} is on the SME unit.",
    f"SELECT count(*) > 0 AND bool_and(on_sme_unit = 'on') AND {_OF_KNOWN_IN_RUNS} {_OF_RUNS}",
)
NONE_ON = Claim(
    "No {known}convolution or matrix product of {model} at {precisions} is on the SME unit.",
    f"SELECT count(*) > 0 AND bool_and(on_sme_unit = 'off') AND {_OF_KNOWN_IN_RUNS} {_OF_RUNS}",
)
ALL_BUT = Claim(
    "All {known}convolutions and matrix products of {model} at {precisions} are on the SME unit, except "
    "its {kinds}.",
    f"SELECT bool_or(on_sme_unit = 'off') AND bool_or(on_sme_unit = 'on') AND bool_and(on_sme_unit <> "
    f"'unknown') AND {_OF_KNOWN_IN_RUNS} {_OF_RUNS}",
)
BY_PRECISION = Claim(
    "At {off} {stays} off the SME unit, while at {on} {them} on it.{because}",
    "SELECT bool_and(found) FROM (SELECT list_contains($off_run_ids, run_id) AND "
    "count(*) FILTER (on_sme_unit = 'off') > 0 OR list_contains($on_run_ids, run_id) AND "
    "count(*) FILTER (on_sme_unit = 'on') > 0 AS found FROM operator_facts WHERE "
    "list_contains($off_run_ids || $on_run_ids, run_id) AND category IN ('CONV', 'GEMM') GROUP BY run_id)",
)

# What was measured, and what its outputs are.
_RUN = "FROM runs WHERE run_id = $run_id"
EMULATED = Claim(
    "Emulated: kernels and outputs are real, times mean nothing and are not shown.",
    f"SELECT fidelity = 'emulated' {_RUN}",
)
REFERENCE = Claim(
    "A reference: native times on {arch}, which say nothing about SME2.",
    f"SELECT fidelity = 'reference' AND arch = $arch {_RUN}",
)
WHAT = Claim(
    "{variant} on {where}, with {threads}, on {when}: {rounds} of {length} per process and arm.",
    "SELECT variant = $variant AND contains($where, coalesce(device, '')) "
    "AND starts_with($threads, threads::VARCHAR) AND starts_with($rounds, "
    "(SELECT count(DISTINCT round) FROM inferences WHERE run_id = $run_id AND pass = 'latency')::VARCHAR "
    f"|| ' ') {_RUN}",
)
SEVERAL_PATHS = Claim(
    "The inferences of this run took {paths} different operator sequences: several methods, or branches. "
    "Times of the whole inference and of categories, and means and shares of operators, are over all of "
    "them; the median of an operator is over the inferences that ran it.",
    "SELECT count(DISTINCT taken) = $paths AND $paths > 1 FROM (SELECT list(concat_ws('|', delegate, name) "
    "ORDER BY delegate, position) AS taken FROM timeline WHERE run_id = $run_id AND kind = 'operator' "
    "GROUP BY round, iteration)",
)
MADE_WITH = Claim(
    "Made with ExecuTorch {executorch} and {compiler}; plan: {rounds}, {warmup} and {timed} per process; "
    "seed of the arms' order {seed}. Hashes of model file, runner and outputs are under What was measured: "
    "the same hashes are the same experiment.",
    "SELECT executorch_version = $executorch AND compiler = $compiler AND seed = $seed "
    f"AND starts_with($rounds, rounds::VARCHAR) {_RUN}",
)
_LEAST_SQNR = "(SELECT min(sqnr_db) FROM numerics WHERE run_id = $run_id)"
AGAINST_EAGER = Claim(
    "{arm}: {judged}, {reached} dB against eager ({needed:g} dB needed{fault})",
    f"SELECT abs({_LEAST_SQNR} - $sqnr) < 1e-9 AND sqnr_threshold_db = $needed "
    "AND abs($reached::DOUBLE - $sqnr) < 0.051 AND ($reached::DOUBLE >= $needed) = ($sqnr >= $needed) "
    f"AND ($judged = 'right') = ({_LEAST_SQNR} >= sqnr_threshold_db AND eager_fault IS NULL) {_RUN}",
)
OUTPUTS_WRONG = Claim(
    "THE OUTPUTS ARE WRONG.",
    "SELECT bool_or(sqnr_db < sqnr_threshold_db OR eager_fault IS NOT NULL OR arms_fault IS NOT NULL) "
    "FROM runs WHERE list_contains($run_ids, run_id)",
)
NO_EAGER = Claim("{arm}: no eager model to compare with", f"SELECT {_LEAST_SQNR} IS NULL")
_VALUES = "FROM arms_numerics WHERE run_id = $run_id"
_BETWEEN = "the arms against each other: {sqnr:.1f} dB"
ARMS_EQUAL = Claim(
    f"{_BETWEEN}, {{counted}} compared, all equal to the bit",
    f"SELECT count(*) = $values AND max(of_bound) = 0 AND min(equal_share) = 1 {_VALUES}",
)
ARMS_WITHIN = Claim(
    f"{_BETWEEN}, {{counted}} compared, at most {{of_bound:.2g}} of what rounding allows",
    f"SELECT count(*) = $values AND abs(max(of_bound) - $of_bound) < 1e-9 AND $of_bound <= 1 {_VALUES}",
)
ARMS_WRONG = Claim(f"{_BETWEEN}, WRONG: {{fault}}", f"SELECT arms_fault = $fault {_RUN}")
ARMS_UNBOUNDED = Claim(f"{_BETWEEN}, not compared by a bound of their own", f"SELECT count(*) = 0 {_VALUES}")
CIRCUMSTANCES = Claim(
    "{arm}: {quiet}; warm-up {steady}; {dropped} samples dropped.",
    f"SELECT ($quiet = 'the machine was quiet') = {_QUIET} "
    "AND (contains($quiet, 'not known') = (flags IS NULL)) "
    "AND samples_dropped = $dropped AND $steady = "
    f"CASE WHEN steady THEN 'steady' WHEN NOT steady THEN 'NOT steady' ELSE 'of fixed length' END {_RUN}",
)
NO_TRIALS = Claim(
    "How often verdicts miss or invent a difference on this device is not known: there were no blind trials "
    "on it (make trust).",
    "SELECT coalesce(sum(trials), 0) = 0 FROM blind_rates AS rates JOIN runs ON runs.run_id = $run_id "
    "AND rates.device = runs.device AND rates.arch = runs.arch AND rates.threads = runs.threads "
    "AND rates.cpus = coalesce(runs.cpus, '') AND rates.power_mode = coalesce(runs.power_mode, '')",
)
REGRESSION = Claim(
    "{series}: {share:.1%} slower since {night} ({before:.3f} -> {after:.3f} ms{chance}){others}",
    "SELECT count(*) = 1 AND bool_and(fidelity <> 'emulated' AND contains($series, variant) "
    "AND contains($series, coalesce(cpus, '')) AND contains($series, coalesce(power_mode, '')) "
    "AND (coalesce(method, 'forward') = 'forward' OR contains($series, method))) "
    "FROM regressions WHERE run_id = $run_id AND category = $category "
    "AND abs(after_ns / before_ns - 1 - $share) < 1e-6 AND after_ns > before_ns "
    "AND abs(before_ns / 1e6 - $before) < 1e-9 AND abs(after_ns / 1e6 - $after) < 1e-9 "
    "AND others_watched IS NOT DISTINCT FROM $watched AND others_slower IS NOT DISTINCT FROM $slower",
)
MORE_WORK = Claim(
    "{series}: {step} since {night}",
    "SELECT count(*) = 1 AND bool_and(fidelity = 'emulated' AND contains($series, variant) "
    "AND contains($step, format('{:,} to {:,} instructions', before_instructions, after_instructions)) "
    "AND contains($step, changed) AND (after_instructions > before_instructions "
    "OR after_macs_on_unit < before_macs_on_unit)) "
    "FROM regressions WHERE run_id = $run_id AND category = 'work'",
)
JOINT_REGRESSION = Claim(
    "{device} on {platform}: {series} series of {models} models slower since {night}, the middle one by "
    "{share:.1%}. So did most series of other models there: look at the device, or at what they share",
    "SELECT count(*) = $series AND count(DISTINCT model) = $models AND $models > 1 "
    "AND abs(median(ratio) - 1 - $share) < 1e-9 "
    "AND bool_and(fidelity <> 'emulated' AND after_ns > before_ns) "
    "AND count(DISTINCT coalesce(device, '')) = 1 "
    "FROM regressions JOIN (SELECT run_id, model FROM runs) USING (run_id) "
    "WHERE list_contains($run_ids, run_id) AND NOT coalesce(acknowledged, false) "
    f"AND others_watched >= {LEAST_WATCHED} AND others_slower >= {MOST_OF_THEM} * others_watched",
)
OVERVIEW = Claim(
    "{models}{variants} on {platforms}: {counted}.",
    "SELECT starts_with($models, count(DISTINCT model) || ' model') "
    "AND $variants = if(count(DISTINCT variant) = count(DISTINCT model), '', "
    "' in ' || count(DISTINCT variant) || ' variants') "
    "AND starts_with($platforms, count(DISTINCT platform) || ' platform') "
    "FROM runs WHERE list_contains($session_ids, session_id)",
)
HEAVIEST = Claim(
    "{name}{module}: {share:.0%}",
    "SELECT abs(max(share) - $share) < 1e-9 AND bool_and(fidelity <> 'emulated') "
    "AND bool_or(abs(share - $share) < 1e-9 AND (name = $name OR ends_with($name, ' (' || name || ')'))) "
    "FROM operator_facts WHERE run_id = $run_id",
)

# What a run's times are.
LATENCY = Claim(
    "Median inference {ms:.3f} ms {arm} (5 % to 95 %: {low:.3f} to {high:.3f} ms; n={rounds} rounds)",
    "SELECT bool_and(fidelity <> 'emulated') AND count(DISTINCT inferences.round) = $rounds "
    "AND $ms BETWEEN $low - 1e-6 AND $high + 1e-6 "
    "AND abs(quantile_cont(duration_ns, 0.05) / 1e6 - $low) < 1e-6 "
    "AND abs(quantile_cont(duration_ns, 0.95) / 1e6 - $high) < 1e-6 "
    "AND bool_and(contains($arm, if(fidelity = 'reference', arch, 'SME2 ' || sme2))) "
    "FROM inferences JOIN runs USING (run_id) "
    "WHERE inferences.run_id = $run_id AND pass = 'latency' AND NOT is_warmup",
)
ALONE = Claim(
    "This arm was measured alone, so there is nothing to compare it with, and no speedup.",
    "SELECT count(*) = 1 FROM runs WHERE session_id = $session_id",
)
ABOUT_ONE_ARM = Claim(
    "About SME2 {state} alone: where its time goes, and what to expect.",
    "SELECT sme2 = $state FROM runs WHERE run_id = $run_id",
)
BASELINE = Claim("{arm} alone: a baseline, with nothing to compare it with.", ALONE.holds)
FLOOR_UNKNOWN = Claim(
    "The noise floor of this device is not known: it takes {sessions} A/A sessions (sme2 profile "
    "{variant} --aa).",
    "SELECT count(*) < $sessions FROM aa_sessions AS aa JOIN runs ON runs.run_id = $run_id "
    "AND aa.platform = runs.platform AND aa.device = runs.device AND aa.threads = runs.threads",
)
FLOOR = Claim(
    "Identical arms reach a ratio of {floor:.3f} on this device, its noise floor by A/A sessions.",
    "SELECT count(*) > 0 AND max(deviation) >= $floor - 1e-9 FROM aa_sessions AS aa JOIN runs ON "
    "runs.run_id = $run_id AND aa.platform = runs.platform AND aa.device = runs.device",
)
MORE = Claim(
    "{more} more, with the tables behind them: sme2 explain {variant} --platform {platform} --all",
    f"SELECT $more > 0 AND variant = $variant AND platform = $platform {_RUN}",
)

# About arms that differ in something other than SME2: each against the first of its session.
_OF_ARM = "FROM comparisons WHERE b_run_id = $b_run_id AND level = 'model'"


def _names(name: str, arm: str) -> str:
    """Whether an arm's name has its value as a word; without a value there is nothing to find."""
    value = f"coalesce({arm}_value, '{arm}')"
    return f"({value} = '' OR contains(concat(' ', {name}, ' '), concat(' ', {value}, ' ')))"


ARM_FASTER = Claim(
    "{faster} {verb} {text} faster than {slower}.",
    f"""SELECT fidelity <> 'emulated' AND {_RIGHT} AND $low > 1 AND $ratio BETWEEN $low AND $high
        AND $n = {_PAIRED_ROUNDS} AND {_says_ratio("$ratio", "$low", "$high", "$n")} AND CASE
        WHEN {_names("$faster", "b")} AND {_names("$slower", "a")}
            THEN $ratio BETWEEN {_LEAST} - 1e-9 AND {_MOST} + 1e-9 AND {_MIDDLE} > 1
        WHEN {_names("$faster", "a")} AND {_names("$slower", "b")}
            THEN 1 / $ratio BETWEEN {_LEAST} - 1e-9 AND {_MOST} + 1e-9 AND {_MIDDLE} < 1
        ELSE false END {_OF_ARM}""",
)
ARMS_ALIKE = Claim(
    "{first} and {second} do not differ by {share:.1%} or more.",
    "SELECT fidelity <> 'emulated' AND speedup_low >= 1 / (1 + $share) - 1e-9 "
    "AND speedup_high <= 1 + $share + 1e-9 "
    f"AND {_names('$first', 'a')} AND {_names('$second', 'b')} {_OF_ARM}",
)
ARMS_OPEN = Claim(
    "Which of {first} and {second} is faster is not shown.",
    f"SELECT fidelity <> 'emulated' AND verdict = 'insufficient data' {_OF_ARM}",
)
ARMS_UNTIMED = Claim(
    "{first} and {second} are not compared in time.",
    f"SELECT verdict = 'not comparable' AND speedup IS NULL {_OF_ARM}",
)
ARM_REASON = Claim(REASON.text, REASON.holds.replace(_MODEL, _OF_ARM))
ARM_CONFIDENCE = Claim(CONFIDENCE.text, CONFIDENCE.holds.replace(_MODEL, _OF_ARM))
ARMS_REFERENCE = Claim(
    "This is a reference on {arch}: it says nothing about SME2.",
    f"SELECT fidelity = 'reference' AND arch = $arch {_OF_ARM}",
)

# What was tried.
GAIN = Claim(
    "With {change} ({what}) {share:.1%} of the model's multiply-accumulates are on the SME unit, as "
    "emulation shows; as the model is, {before:.1%}.",
    "SELECT (SELECT abs(share - $share) < 1e-9 AND what = $what AND recommended AND run_id IS NOT NULL "
    "FROM advice WHERE variant = $variant AND change = $change) "
    "AND (SELECT abs(share - $before) < 1e-9 FROM advice WHERE variant = $variant AND rank = 0)",
)
_COUNTED = (
    "(SELECT delegate_calls = ${0}delegate_calls AND outside = ${0}outside AND operators = ${0}operators "
    "AND {1} FROM advice WHERE variant = $variant AND {2})"
)
FEWER = Claim(
    "With {change} ({what}) no less of the model is on the SME unit. In one inference, delegate calls: "
    "{before_delegate_calls} to {delegate_calls}, operators outside of delegates: {before_outside} to "
    "{outside}, operators in all: {before_operators} to {operators}. What that means for its time is not "
    "known from emulation.",
    "SELECT "
    + _COUNTED.format("", "what = $what AND recommended AND run_id IS NOT NULL", "change = $change")
    + " AND "
    + _COUNTED.format("before_", "run_id IS NOT NULL", "rank = 0")
    + " AND (SELECT max(share) FILTER (change = $change) >= max(share) FILTER (rank = 0) IS NOT FALSE "
    "FROM advice WHERE variant = $variant)",
)
NO_GAIN = Claim(
    "Changes that were tried under emulation: {count}. None is recommended: that takes more of the model "
    "on the SME unit; or no less, with fewer calls or operators, in a program of about the same size.",
    "SELECT count(*) FILTER (run_id IS NOT NULL AND rank > 0) = $count AND NOT bool_or(recommended) "
    "FROM advice WHERE variant = $variant",
)
