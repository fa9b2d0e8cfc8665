-- Views over the events and inferences of runs. They are there twice: in the published file, where a query asks
-- them of single runs, and where summaries are made of new runs (summaries.sql).

-- XNNPACK floors each of its times to a whole microsecond. In a call that hides at most one microsecond per row,
-- and together no more than the call, whose time is exact, took beyond its rows. Where those exceed the call
-- (a clock of whole microseconds), the call says nothing.
CREATE VIEW delegate_calls AS
-- Every call of a delegate has the same rows: another operator sequence has delegates of its own.
WITH delegates AS (
    SELECT run_id, delegate, count(DISTINCT position) FILTER (backend = 'xnnpack') AS floored_rows
    FROM timeline
    WHERE kind = 'operator' AND delegate IS NOT NULL
    GROUP BY run_id, delegate
)
SELECT
    run_id, round, iteration, delegate,
    duration_ns AS beyond_ns,
    coalesce(floored_rows, 0) AS floored_rows,
    CASE
        WHEN duration_ns >= 0 THEN least(1000 * coalesce(floored_rows, 0), duration_ns)
        WHEN duration_ns < 0 THEN 1000 * coalesce(floored_rows, 0)
    END AS hidden_ns
FROM timeline
LEFT JOIN delegates USING (run_id, delegate)
WHERE kind = 'delegate_overhead';
COMMENT ON VIEW delegate_calls IS 'What XNNPACK''s whole microseconds can hide of the rows of each delegate call.';
COMMENT ON COLUMN delegate_calls.beyond_ns IS 'What the call took beyond what its rows report.';
COMMENT ON COLUMN delegate_calls.floored_rows IS 'Its rows that XNNPACK floored.';
COMMENT ON COLUMN delegate_calls.hidden_ns IS 'The most that its rows can have taken beyond what they report.';

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
    avg(duration_ns) AS mean_ns,
    median(duration_ns + CASE WHEN backend = 'xnnpack' THEN least(1000, hidden_ns) ELSE 0 END) AS most_ns,
    avg(duration_ns + CASE WHEN backend = 'xnnpack' THEN least(1000, hidden_ns) ELSE 0 END) AS mean_most_ns
FROM timeline
LEFT JOIN delegate_calls USING (run_id, round, iteration, delegate)
WHERE kind = 'operator' AND NOT is_warmup
GROUP BY run_id, round, backend, delegate, position;
COMMENT ON VIEW operator_rounds IS 'Time of each operator in each process of the etdump pass.';
COMMENT ON COLUMN operator_rounds.median_ns IS 'Median over the inferences of the process that ran it.';
COMMENT ON COLUMN operator_rounds.mean_ns IS 'Mean over those inferences.';
COMMENT ON COLUMN operator_rounds.most_ns IS 'The most the median can be; the median itself is the least. The same for an exact clock.';
COMMENT ON COLUMN operator_rounds.mean_most_ns IS 'The most the mean can be; the mean itself is the least.';
COMMENT ON COLUMN operator_rounds.inferences IS 'Timed inferences that ran it.';

CREATE VIEW judged_samples AS
SELECT *, {{IS_SME}} AS is_sme, {{IS_TELLING}} AS is_telling
FROM kernel_samples;
COMMENT ON VIEW judged_samples IS 'The rows of kernel_samples, and what they tell about the unit.';
COMMENT ON COLUMN judged_samples.is_sme IS 'In an SME or SME2 kernel that computes or packs, or on an instruction of SME''s own.';
COMMENT ON COLUMN judged_samples.is_telling IS 'On SME, or in another kernel that computes. What waits, packs or keeps books tells nothing about the unit.';

-- Evidence of both kinds in one shape: a run was sampled, or its work was counted.
CREATE VIEW executed_functions AS
SELECT
    run_id, kind, backend, delegate, position, thread_kind, library, function_offset, symbol, kernel_family, role, data_types, tile,
    isa, unit, NULL AS class, samples, near_boundary_samples, is_sme, is_telling, 0::BIGINT AS instructions,
    0::BIGINT AS multiply_accumulates, 0::BIGINT AS bytes, samples AS weight
FROM judged_samples
UNION ALL
SELECT
    run_id, kind, backend, delegate, position, thread_kind, library, function_offset, symbol, kernel_family, role, data_types, tile,
    isa, unit, class, 0, 0, {{IS_SME}}, false, instructions, multiply_accumulates, bytes, instructions
FROM operator_work;
COMMENT ON VIEW executed_functions IS 'What ran, by operator and function: the rows of kernel_samples, or of operator_work.';
COMMENT ON COLUMN executed_functions.class IS 'Class of the instructions, as in operator_work; NULL where they were sampled.';
COMMENT ON COLUMN executed_functions.is_sme IS 'On SME, as in judged_samples.';
COMMENT ON COLUMN executed_functions.is_telling IS 'As in judged_samples; false where they were counted: counts need no such rule.';
COMMENT ON COLUMN executed_functions.weight IS 'Samples or instructions, whichever there are.';

-- The per-process median is the observation; rounds are the statistical unit.
CREATE VIEW latency_rounds AS
SELECT
    run_id, round, count(*)::INTEGER AS inferences, median(duration_ns) AS median_ns, avg(duration_ns) AS mean_ns
FROM inferences
WHERE pass = 'latency' AND NOT is_warmup
GROUP BY run_id, round;
COMMENT ON VIEW latency_rounds IS 'Median inference time of each process of the latency pass.';
COMMENT ON COLUMN latency_rounds.run_id IS 'The profile run.';
COMMENT ON COLUMN latency_rounds.round IS 'Round of the session.';
COMMENT ON COLUMN latency_rounds.median_ns IS 'Median inference time of the process.';
COMMENT ON COLUMN latency_rounds.mean_ns IS 'Mean inference time of the process.';
