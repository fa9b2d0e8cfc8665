-- The views people query. Every statistic that SQL, report, UI and command line show of a single
-- run is defined here and only here; comparisons between arms come from analysis/comparison.py.

CREATE VIEW latest_runs AS
SELECT *
FROM runs
WHERE experiment = 'sme2'
QUALIFY row_number() OVER (
    PARTITION BY variant, platform, sme2, threads ORDER BY started_at DESC, run_id DESC
) = 1;
COMMENT ON VIEW latest_runs IS 'The newest run of every variant, platform, SME2 state and thread count; columns as in runs.';

-- The per-process median is the observation; rounds are the statistical unit.
CREATE VIEW latency_rounds AS
SELECT run_id, round, count(*)::INTEGER AS inferences, median(duration_ns) AS median_ns
FROM inferences
WHERE pass = 'latency' AND NOT is_warmup
GROUP BY run_id, round;
COMMENT ON VIEW latency_rounds IS 'Median inference time of each process of the latency pass.';
COMMENT ON COLUMN latency_rounds.run_id IS 'The profile run.';
COMMENT ON COLUMN latency_rounds.round IS 'Round of the session.';
COMMENT ON COLUMN latency_rounds.inferences IS 'Timed inferences.';
COMMENT ON COLUMN latency_rounds.median_ns IS 'Median inference time of the process.';

CREATE VIEW latency_summary AS
WITH spread AS (
    SELECT
        run_id,
        min(duration_ns) AS min_ns,
        quantile_cont(duration_ns, 0.05) AS p05_ns,
        quantile_cont(duration_ns, 0.95) AS p95_ns,
        max(duration_ns) AS max_ns
    FROM inferences
    WHERE pass = 'latency' AND NOT is_warmup
    GROUP BY run_id
),
rounds AS (
    SELECT
        run_id,
        count(*)::INTEGER AS rounds,
        sum(inferences)::INTEGER AS inferences,
        median(median_ns) AS median_ns,
        stddev_samp(median_ns) / nullif(avg(median_ns), 0) AS round_cv
    FROM latency_rounds
    GROUP BY run_id
),
traced AS (
    SELECT run_id, median(duration_ns) AS traced_ns
    FROM inferences
    WHERE pass = 'etdump' AND NOT is_warmup
    GROUP BY run_id
)
SELECT
    runs.run_id, runs.session_id, runs.variant, runs.model, runs.precision, runs.platform, runs.sme2,
    runs.threads, runs.fidelity, runs.started_at,
    rounds.rounds, rounds.inferences, rounds.median_ns, spread.min_ns, spread.p05_ns, spread.p95_ns, spread.max_ns,
    rounds.round_cv,
    traced.traced_ns / nullif(rounds.median_ns, 0) - 1 AS tracer_overhead,
    runs.load_ns, runs.peak_memory_bytes
FROM runs
JOIN rounds USING (run_id)
JOIN spread USING (run_id)
LEFT JOIN traced USING (run_id);
COMMENT ON VIEW latency_summary IS 'Inference latency of each run, from the pass without tracer.';
COMMENT ON COLUMN latency_summary.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN latency_summary.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN latency_summary.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN latency_summary.min_ns IS 'Fastest inference.';
COMMENT ON COLUMN latency_summary.p05_ns IS '5 % quantile over all inferences.';
COMMENT ON COLUMN latency_summary.p95_ns IS '95 % quantile over all inferences.';
COMMENT ON COLUMN latency_summary.max_ns IS 'Slowest inference.';
COMMENT ON COLUMN latency_summary.round_cv IS 'Standard deviation of the round medians over their mean; NULL with one round.';
COMMENT ON COLUMN latency_summary.tracer_overhead IS 'Median inference with tracer over without, minus 1.';
COMMENT ON COLUMN latency_summary.load_ns IS 'Model load time, median.';
COMMENT ON COLUMN latency_summary.peak_memory_bytes IS 'Peak memory, largest process.';

CREATE VIEW operator_rounds AS
SELECT
    run_id, round, backend, delegate, position,
    any_value(name) AS name,
    any_value(op_type) AS op_type,
    any_value(data_type) AS data_type,
    any_value(category) AS category,
    bool_and(known) AS known,
    any_value(sme2_evidence) AS sme2_evidence,
    count(*)::INTEGER AS inferences,
    median(duration_ns) AS median_ns,
    avg(duration_ns) AS mean_ns
FROM timeline
WHERE kind = 'operator' AND NOT is_warmup
GROUP BY run_id, round, backend, delegate, position;
COMMENT ON VIEW operator_rounds IS 'Time of each operator in each process of the etdump pass.';
COMMENT ON COLUMN operator_rounds.median_ns IS 'Median over the inferences of the process.';
COMMENT ON COLUMN operator_rounds.mean_ns IS 'Mean over the inferences of the process; means add up.';
COMMENT ON COLUMN operator_rounds.inferences IS 'Timed inferences.';

CREATE VIEW operator_summary AS
WITH execute AS (
    SELECT run_id, avg(execute_ns) AS mean_ns
    FROM inferences
    WHERE pass = 'etdump' AND NOT is_warmup
    GROUP BY run_id
),
operators AS (
    SELECT
        run_id, backend, delegate, position,
        any_value(name) AS name,
        any_value(op_type) AS op_type,
        any_value(data_type) AS data_type,
        any_value(category) AS category,
        bool_and(known) AS known,
        any_value(sme2_evidence) AS sme2_evidence,
        count(*)::INTEGER AS rounds,
        sum(inferences)::INTEGER AS inferences,
        median(median_ns) AS median_ns,
        avg(mean_ns) AS mean_ns
    FROM operator_rounds
    GROUP BY run_id, backend, delegate, position
)
SELECT
    runs.run_id, runs.session_id, runs.variant, runs.model, runs.precision, runs.platform, runs.sme2,
    runs.threads, runs.fidelity, runs.started_at,
    operators.delegate, operators.position, operators.name, operators.op_type, operators.data_type,
    operators.category, operators.known, operators.backend, operators.sme2_evidence,
    operators.rounds, operators.inferences, operators.median_ns, operators.mean_ns,
    operators.mean_ns / nullif(execute.mean_ns, 0) AS share
FROM operators
JOIN runs USING (run_id)
JOIN execute USING (run_id);
COMMENT ON VIEW operator_summary IS 'Time of each operator of each run. An operator is its delegate and position, not its name.';
COMMENT ON COLUMN operator_summary.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN operator_summary.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN operator_summary.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN operator_summary.mean_ns IS 'Mean; means of all rows and the overhead add up to the inference.';
COMMENT ON COLUMN operator_summary.share IS 'Mean time over mean Method::execute.';

-- Overhead is kept as a row of its own, so that the rows of a run add up to the inference.
CREATE VIEW category_rounds AS
WITH per_inference AS (
    SELECT
        run_id, round, iteration,
        coalesce(category, 'Overhead') AS category,
        sum(duration_ns) AS duration_ns,
        count(*) FILTER (kind = 'operator') AS operators,
        count(*) FILTER (kind = 'operator' AND sme2_evidence <> 'none') AS sme2_operators,
        count(*) FILTER (kind = 'operator' AND NOT known) AS unknown_operators
    FROM timeline
    WHERE NOT is_warmup
    GROUP BY run_id, round, iteration, coalesce(category, 'Overhead')
)
SELECT
    run_id, round, category,
    max(operators)::INTEGER AS operators,
    max(sme2_operators)::INTEGER AS sme2_operators,
    max(unknown_operators)::INTEGER AS unknown_operators,
    count(*)::INTEGER AS inferences,
    median(duration_ns) AS median_ns,
    avg(duration_ns) AS mean_ns
FROM per_inference
GROUP BY run_id, round, category;
COMMENT ON VIEW category_rounds IS 'Time of each category in each process of the etdump pass; Overhead is no operator category.';
COMMENT ON COLUMN category_rounds.operators IS 'Operators of the category in one inference.';
COMMENT ON COLUMN category_rounds.sme2_operators IS 'Those with SME2 evidence.';
COMMENT ON COLUMN category_rounds.unknown_operators IS 'Those the categoriser does not know (Other only).';
COMMENT ON COLUMN category_rounds.inferences IS 'Timed inferences.';
COMMENT ON COLUMN category_rounds.median_ns IS 'Median over the inferences of the process.';
COMMENT ON COLUMN category_rounds.mean_ns IS 'Mean over the inferences of the process; means add up.';

CREATE VIEW category_summary AS
WITH categories AS (
    SELECT
        run_id, category,
        max(operators)::INTEGER AS operators,
        max(sme2_operators)::INTEGER AS sme2_operators,
        max(unknown_operators)::INTEGER AS unknown_operators,
        count(*)::INTEGER AS rounds,
        median(median_ns) AS median_ns,
        avg(mean_ns) AS mean_ns
    FROM category_rounds
    GROUP BY run_id, category
)
SELECT
    runs.run_id, runs.session_id, runs.variant, runs.model, runs.precision, runs.platform, runs.sme2,
    runs.threads, runs.fidelity, runs.started_at,
    categories.category, categories.operators, categories.sme2_operators, categories.unknown_operators,
    categories.rounds, categories.median_ns, categories.mean_ns,
    categories.mean_ns / nullif(sum(categories.mean_ns) OVER (PARTITION BY run_id), 0) AS share
FROM categories
JOIN runs USING (run_id);
COMMENT ON VIEW category_summary IS 'Time of each operator category of each run, and of the overhead.';
COMMENT ON COLUMN category_summary.category IS 'CONV, GEMM, Data Movement, Elementwise, Other; Overhead is delegate and framework overhead.';
COMMENT ON COLUMN category_summary.operators IS 'Operators of the category in one inference.';
COMMENT ON COLUMN category_summary.sme2_operators IS 'Those with SME2 evidence.';
COMMENT ON COLUMN category_summary.unknown_operators IS 'Those the categoriser does not know (Other only).';
COMMENT ON COLUMN category_summary.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN category_summary.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN category_summary.mean_ns IS 'Mean time per inference; the rows of a run add up to the inference.';
COMMENT ON COLUMN category_summary.share IS 'Mean time over the sum of the run''s rows.';

CREATE VIEW sme2_comparison AS
SELECT *
FROM comparisons
WHERE experiment = 'sme2'
QUALIFY session_id = max(session_id) OVER (PARTITION BY variant, platform, threads);
COMMENT ON VIEW sme2_comparison IS 'The newest comparison of every variant, platform and thread count; columns as in comparisons.';

CREATE VIEW aa_sessions AS
SELECT
    platform, device, threads, variant, session_id, speedup, speedup_low, speedup_high, n, verdict,
    exp(abs(ln(speedup))) AS deviation
FROM comparisons
WHERE experiment = 'aa' AND level = 'model' AND speedup IS NOT NULL;
COMMENT ON VIEW aa_sessions IS 'What identical arms gave: every deviation from 1 is noise, every verdict but no difference an error.';
COMMENT ON COLUMN aa_sessions.deviation IS 'The speedup or its reciprocal, whichever is above 1.';

-- One point per run: what change points are looked for in, and what a plot of the nights shows.
CREATE VIEW history AS
SELECT
    runs.variant, runs.platform, runs.device, runs.threads, runs.sme2,
    series.category, runs.started_at, runs.run_id, series.median_ns
FROM (
    SELECT run_id, 'latency' AS category, median_ns FROM latency_summary
    UNION ALL
    SELECT run_id, category, median_ns FROM category_summary
) AS series
JOIN runs USING (run_id)
WHERE runs.fidelity = 'hardware' AND runs.experiment = 'sme2';
COMMENT ON VIEW history IS 'Median times of every run on hardware, per category and for the whole inference.';
COMMENT ON COLUMN history.category IS 'Operator category, Overhead, or latency: the whole inference without tracer.';
COMMENT ON COLUMN history.median_ns IS 'Median over rounds of the per-process medians.';
