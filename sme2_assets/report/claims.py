"""What reports, the overview and the terminal say; the predicates go back to rounds and operators."""

from __future__ import annotations

from sme2_assets.analysis.claims import Claim

# The comparison of the whole model of a session.
_MODEL = "FROM comparisons WHERE session_id = $session_id AND level = 'model'"
# The ratio of each round, by another way than the comparison: straight from the processes.
_RATIOS = (
    "(SELECT {pick} FROM latency_rounds AS off JOIN latency_rounds AS arm USING (round) "
    "WHERE off.run_id = off_run_id AND arm.run_id = on_run_id)"
)
_MIDDLE = _RATIOS.format(pick="median(off.median_ns / arm.median_ns)")
_LEAST = _RATIOS.format(pick="min(off.median_ns / arm.median_ns)")
_MOST = _RATIOS.format(pick="max(off.median_ns / arm.median_ns)")
_RIGHT = (
    "(SELECT count(*) = 2 AND bool_and(coalesce(sqnr_db >= sqnr_threshold_db, true)) FROM runs "
    "WHERE run_id IN (off_run_id, on_run_id))"
)

# Faster or slower needs hardware, right outputs and an interval on one side of 1; "no difference" is only
# said of one that holds 1.
VERDICT = Claim(
    "{verdict}",
    f"""SELECT CASE $verdict
        WHEN 'faster' THEN fidelity = 'hardware' AND {_RIGHT} AND speedup_low > 1 AND {_MIDDLE} > 1
        WHEN 'slower' THEN fidelity = 'hardware' AND {_RIGHT} AND speedup_high < 1 AND {_MIDDLE} < 1
        WHEN 'no difference' THEN fidelity = 'hardware' AND speedup_low <= 1 AND speedup_high >= 1
        WHEN 'too small to count' THEN fidelity = 'hardware' AND (speedup_low > 1 OR speedup_high < 1)
        WHEN 'insufficient data' THEN verdict = $verdict
        WHEN 'not comparable' THEN verdict = $verdict AND speedup IS NULL
        ELSE false END {_MODEL}""",
)
SPEEDUP = Claim(
    "Speedup (off / on): {text}.",
    f"SELECT fidelity = 'hardware' AND $speedup BETWEEN {_LEAST} - 1e-9 AND {_MOST} + 1e-9 "
    f"AND $speedup BETWEEN speedup_low AND speedup_high {_MODEL}",
)
PLACEBO = Claim(
    "{operators} {have} the same kernel in both arms, and together a ratio of {ratio}",
    "SELECT count(*) FILTER (placebo) = $operators AND bool_and(fidelity = 'hardware') "
    "AND bool_and(coalesce(sme2_operators_off + sme2_operators_on + sme2_operators_unknown, 0) = 0) "
    "FILTER (placebo) "
    "FROM comparisons WHERE session_id = $session_id AND level = 'operator'",
)

# How much of a run is on the SME unit.
_MATRIX = "FROM operator_facts WHERE run_id = $run_id AND category IN ('CONV', 'GEMM')"
COUNT = Claim(
    "{on_unit} of {matrix_operators}{unknown_text}",
    "SELECT count(*) = $matrix_operators AND count(*) FILTER (on_sme_unit = 'on') = $on_unit "
    "AND count(*) FILTER (on_sme_unit = 'unknown') = $unknown AND ($unknown > 0) = ($unknown_text <> '') "
    f"AND bool_and(fidelity IS DISTINCT FROM 'reference') {_MATRIX}",
)
WORK = Claim(
    "{share} of the multiply-accumulates{without}",
    "SELECT abs(coalesce(sum(macs) FILTER (on_sme_unit = 'on'), 0) / sum(macs) - $low) < 1e-9 "
    "AND abs(coalesce(sum(macs) FILTER (on_sme_unit <> 'off'), 0) / sum(macs) - $high) < 1e-9 "
    f"AND (count(*) > count(macs)) = ($without <> '') {_MATRIX}",
)
# Of several runs of one model.
_OF_RUNS = "FROM operator_facts WHERE list_contains($run_ids, run_id) AND category IN ('CONV', 'GEMM')"
ALL_ON = Claim(
    "Every convolution and matrix product of {model} at {precisions} is on the SME unit.",
    f"SELECT count(*) > 0 AND bool_and(on_sme_unit = 'on') {_OF_RUNS}",
)
NONE_ON = Claim(
    "No convolution or matrix product of {model} at {precisions} is on the SME unit.",
    f"SELECT count(*) > 0 AND bool_and(on_sme_unit = 'off') {_OF_RUNS}",
)
ALL_BUT = Claim(
    "All convolutions and matrix products of {model} at {precisions} are on the SME unit, but for "
    "its {kinds}.",
    f"SELECT bool_or(on_sme_unit = 'off') AND bool_or(on_sme_unit = 'on') AND bool_and(on_sme_unit <> "
    f"'unknown') {_OF_RUNS}",
)

# What a run's times are.
LATENCY = Claim(
    "median inference; 5 % to 95 %: {low:.3f} to {high:.3f} ms; n={rounds} rounds",
    "SELECT bool_and(fidelity <> 'emulated') AND count(DISTINCT inferences.round) = $rounds "
    "AND abs(quantile_cont(duration_ns, 0.05) / 1e6 - $low) < 1e-6 "
    "AND abs(quantile_cont(duration_ns, 0.95) / 1e6 - $high) < 1e-6 "
    "FROM inferences JOIN runs USING (run_id) "
    "WHERE inferences.run_id = $run_id AND pass = 'latency' AND NOT is_warmup",
)
ALONE = Claim(
    "This arm was measured alone, so there is nothing to compare it with, and no speedup.",
    "SELECT count(*) = 1 FROM runs WHERE session_id = $session_id",
)
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
