-- What summaries need of the events of a run, counted when the run is published. Events are in the files of
-- all runs, and a query over those takes longer with each of them; these are tables. They are made twice:
-- empty, where the published file is made, and of new runs, from `timeline` and `kernel_samples` with only
-- the rows of these. So nothing here may look beyond one run.

-- XNNPACK floors each of its times to a whole microsecond. In a call that hides at most one microsecond per row,
-- and together no more than the call, whose time is exact, took beyond its rows. Where those exceed the call
-- (a clock of whole microseconds), the call says nothing.
CREATE VIEW delegate_calls AS
SELECT
    run_id, round, iteration, delegate,
    sum(duration_ns) FILTER (kind = 'delegate_overhead') AS beyond_ns,
    count(*) FILTER (kind = 'operator' AND backend = 'xnnpack') AS floored_rows,
    CASE
        WHEN beyond_ns >= 0 THEN least(1000 * floored_rows, beyond_ns)
        WHEN beyond_ns < 0 THEN 1000 * floored_rows
    END AS hidden_ns
FROM timeline
WHERE delegate IS NOT NULL
GROUP BY run_id, round, iteration, delegate;
COMMENT ON VIEW delegate_calls IS 'What XNNPACK''s whole microseconds can hide of the rows of each delegate call.';
COMMENT ON COLUMN delegate_calls.beyond_ns IS 'What the call took beyond what its rows report.';
COMMENT ON COLUMN delegate_calls.floored_rows IS 'Its rows that XNNPACK floored.';
COMMENT ON COLUMN delegate_calls.hidden_ns IS 'The most that its rows can have taken beyond what they report.';

CREATE TABLE operator_rounds AS
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
    median(duration_ns + if(backend = 'xnnpack', least(1000, hidden_ns), 0)) AS most_ns,
    avg(duration_ns + if(backend = 'xnnpack', least(1000, hidden_ns), 0)) AS mean_most_ns
FROM timeline
LEFT JOIN delegate_calls USING (run_id, round, iteration, delegate)
WHERE kind = 'operator' AND NOT is_warmup
GROUP BY run_id, round, backend, delegate, position;
COMMENT ON TABLE operator_rounds IS 'Time of each operator in each process of the etdump pass.';
COMMENT ON COLUMN operator_rounds.median_ns IS 'Median over the inferences of the process that ran it.';
COMMENT ON COLUMN operator_rounds.mean_ns IS 'Mean over those inferences.';
COMMENT ON COLUMN operator_rounds.most_ns IS 'The most the median can be; the median itself is the least. The same for an exact clock.';
COMMENT ON COLUMN operator_rounds.mean_most_ns IS 'The most the mean can be; the mean itself is the least.';
COMMENT ON COLUMN operator_rounds.inferences IS 'Timed inferences that ran it.';

CREATE TABLE operator_order AS
SELECT
    run_id, backend, delegate, position,
    row_number() OVER (PARTITION BY run_id ORDER BY avg(start_ns), delegate, position)::INTEGER AS execution_order
FROM timeline
WHERE kind = 'operator' AND NOT is_warmup
GROUP BY run_id, backend, delegate, position;
COMMENT ON TABLE operator_order IS 'The order in which the operators of each run were executed.';
COMMENT ON COLUMN operator_order.execution_order IS 'Order within the inference, over delegates and portable operators, from 1.';

CREATE TABLE programs AS
SELECT
    run_id,
    md5(string_agg(concat_ws(':', backend, delegate, position, op_type), ',' ORDER BY backend, delegate, position))
        AS program
FROM operator_rounds
WHERE round = 0
GROUP BY run_id;
COMMENT ON TABLE programs IS 'Which operators each run has in which places.';
COMMENT ON COLUMN programs.program IS 'Hash of their types and places: runs of the same operators have the same.';

-- Overhead is kept as a row of its own, so that the rows of a run add up to the inference.
CREATE TABLE category_rounds AS
WITH per_call AS (
    SELECT
        run_id, round, iteration, delegate,
        coalesce(category, 'Overhead') AS category,
        sum(duration_ns) AS duration_ns,
        count(*) FILTER (kind = 'operator') AS operators,
        count(*) FILTER (kind = 'operator' AND NOT known) AS unknown_operators,
        coalesce(any_value(hidden_ns), 0) AS hidden_in_call_ns,
        least(1000 * count(*) FILTER (kind = 'operator' AND backend = 'xnnpack'), hidden_in_call_ns) AS hidden_ns
    FROM timeline
    LEFT JOIN delegate_calls USING (run_id, round, iteration, delegate)
    WHERE NOT is_warmup
    GROUP BY run_id, round, iteration, delegate, coalesce(category, 'Overhead')
),
-- Not every inference has every category where they took several operator sequences.
processes AS (
    SELECT run_id, round, count(DISTINCT iteration) AS inferences
    FROM timeline
    WHERE NOT is_warmup
    GROUP BY run_id, round
),
per_inference AS (
    SELECT
        run_id, round, iteration, category,
        sum(duration_ns) AS duration_ns,
        -- What the rows of a call hide is counted as its overhead.
        sum(duration_ns - if(category = 'Overhead', hidden_in_call_ns, 0)) AS least_ns,
        sum(duration_ns + hidden_ns) AS most_ns,
        sum(operators) AS operators,
        sum(unknown_operators) AS unknown_operators
    FROM per_call
    GROUP BY run_id, round, iteration, category
)
SELECT
    run_id, round, category,
    max(operators)::INTEGER AS operators,
    max(unknown_operators)::INTEGER AS unknown_operators,
    count(*)::INTEGER AS inferences,
    median(duration_ns) AS median_ns,
    sum(duration_ns) / any_value(processes.inferences) AS mean_ns,
    median(least_ns) AS least_ns,
    median(most_ns) AS most_ns
FROM per_inference
JOIN processes USING (run_id, round)
GROUP BY run_id, round, category;
COMMENT ON TABLE category_rounds IS 'Time of each category in each process of the etdump pass; Overhead is not an operator category.';
COMMENT ON COLUMN category_rounds.operators IS 'Operators of the category in one inference.';
COMMENT ON COLUMN category_rounds.unknown_operators IS 'Those the categoriser does not know (Other only).';
COMMENT ON COLUMN category_rounds.inferences IS 'Timed inferences that have an operator of the category.';
COMMENT ON COLUMN category_rounds.median_ns IS 'Median over those inferences.';
COMMENT ON COLUMN category_rounds.mean_ns IS 'Mean over all timed inferences of the process; means add up.';
COMMENT ON COLUMN category_rounds.least_ns IS 'The least the median can be: less than it for Overhead, which holds what the operators hide.';
COMMENT ON COLUMN category_rounds.most_ns IS 'The most the median can be: XNNPACK hides up to a microsecond of each operator.';

CREATE TABLE part_rounds AS
WITH per_call AS (
    SELECT
        run_id, round, iteration, delegate,
        sum(duration_ns) AS inference_ns,
        coalesce(sum(duration_ns) FILTER (category IN ('CONV', 'GEMM')), 0 * inference_ns) AS compute_ns,
        compute_ns + coalesce(least(
            1000 * count(*) FILTER (category IN ('CONV', 'GEMM') AND backend = 'xnnpack'), any_value(hidden_ns)
        ), 0) AS compute_most_ns,
        coalesce(sum(duration_ns) FILTER (category = 'Data Movement'), 0 * inference_ns) AS data_movement_ns,
        data_movement_ns + coalesce(least(
            1000 * count(*) FILTER (category = 'Data Movement' AND backend = 'xnnpack'), any_value(hidden_ns)
        ), 0) AS data_movement_most_ns,
        coalesce(sum(duration_ns) FILTER (kind = 'operator' AND backend = 'portable'), 0 * inference_ns) AS portable_ns,
        coalesce(sum(duration_ns) FILTER (kind = 'delegate_overhead'), 0 * inference_ns) AS delegate_overhead_ns,
        coalesce(sum(duration_ns) FILTER (kind = 'framework_overhead'), 0 * inference_ns) AS framework_overhead_ns,
        count(*) FILTER (kind = 'delegate_overhead') AS delegate_calls,
        count(*) FILTER (kind = 'operator') AS operators,
        count(*) FILTER (kind = 'operator' AND backend = 'portable') AS portable_operators
    FROM timeline
    LEFT JOIN delegate_calls USING (run_id, round, iteration, delegate)
    WHERE NOT is_warmup
    GROUP BY run_id, round, iteration, delegate
),
per_inference AS (
    SELECT
        run_id, round, sum(COLUMNS('_ns$|_calls$|operators$'))
    FROM per_call
    GROUP BY run_id, round, iteration
)
SELECT
    run_id, round, count(*)::INTEGER AS inferences,
    avg(COLUMNS('_ns$')),
    max(delegate_calls)::INTEGER AS delegate_calls, max(operators)::INTEGER AS operators,
    max(portable_operators)::INTEGER AS portable_operators
FROM per_inference
GROUP BY run_id, round;
COMMENT ON TABLE part_rounds IS 'Mean time of the parts of an inference in each process of the etdump pass.';
COMMENT ON COLUMN part_rounds.inferences IS 'Timed inferences.';
COMMENT ON COLUMN part_rounds.inference_ns IS 'Method::execute with tracer.';
COMMENT ON COLUMN part_rounds.compute_ns IS 'CONV and GEMM.';
COMMENT ON COLUMN part_rounds.compute_most_ns IS 'The most that CONV and GEMM can be: XNNPACK hides up to a microsecond of each operator.';
COMMENT ON COLUMN part_rounds.data_movement_ns IS 'Data Movement.';
COMMENT ON COLUMN part_rounds.data_movement_most_ns IS 'The most that Data Movement can be.';
COMMENT ON COLUMN part_rounds.portable_ns IS 'Operators outside delegates, whatever their category.';
COMMENT ON COLUMN part_rounds.delegate_overhead_ns IS 'Delegate calls beyond their operators.';
COMMENT ON COLUMN part_rounds.framework_overhead_ns IS 'Method::execute beyond delegate calls and portable operators.';
COMMENT ON COLUMN part_rounds.delegate_calls IS 'Delegate calls of one inference.';
COMMENT ON COLUMN part_rounds.operators IS 'Operators of one inference.';
COMMENT ON COLUMN part_rounds.portable_operators IS 'Those outside delegates.';

CREATE VIEW judged_samples AS
SELECT *, {{IS_SME}} AS is_sme, {{IS_TELLING}} AS is_telling
FROM kernel_samples;
COMMENT ON VIEW judged_samples IS 'The rows of kernel_samples, and what they tell of the unit.';
COMMENT ON COLUMN judged_samples.is_sme IS 'In an SME or SME2 kernel that computes or packs, or on an instruction of SME''s own.';
COMMENT ON COLUMN judged_samples.is_telling IS 'On SME, or in another kernel that computes. What waits, packs or keeps books tells nothing of the unit.';

-- Emulated shares weigh each instruction by what it costs the emulator: they tell which units were used,
-- and not for how long. Where no instruction could be told, as on another instruction set, shares are NULL.
CREATE TABLE operator_samples AS
SELECT
    run_id, backend, delegate, position,
    sum(samples)::BIGINT AS samples,
    sum(near_boundary_samples)::BIGINT AS near_boundary_samples,
    coalesce(sum(samples) FILTER (is_sme), 0)::BIGINT AS sme_samples,
    coalesce(sum(samples - near_boundary_samples) FILTER (is_telling), 0)::BIGINT AS telling_samples,
    coalesce(sum(samples - near_boundary_samples) FILTER (is_sme), 0)::BIGINT AS certain_sme_samples,
    sum(samples * (nullif(unit, 'unknown') = 'SME')::INTEGER) / sum(samples) AS sme_unit_share,
    sum(samples * (nullif(unit, 'unknown') = 'SVE')::INTEGER) / sum(samples) AS sve_unit_share,
    sum(samples * (nullif(unit, 'unknown') = 'SIMD/FP')::INTEGER) / sum(samples) AS simd_unit_share,
    sum(samples * (nullif(unit, 'unknown') = 'load/store')::INTEGER) / sum(samples) AS load_store_share
FROM judged_samples
WHERE kind = 'operator'
GROUP BY run_id, backend, delegate, position;
COMMENT ON TABLE operator_samples IS 'Samples of each operator of each run, and the units they were on.';
COMMENT ON COLUMN operator_samples.sme_samples IS 'Samples in SME or SME2 kernels (compute or pack), or on an SME instruction.';
COMMENT ON COLUMN operator_samples.telling_samples IS 'Samples in kernels that compute, on SME or not, away from the border to another operator. Threads that wait are not among them.';
COMMENT ON COLUMN operator_samples.certain_sme_samples IS 'Telling samples on SME.';
COMMENT ON COLUMN operator_samples.sme_unit_share IS 'Share of samples on an instruction of the SME encoding space.';
COMMENT ON COLUMN operator_samples.sve_unit_share IS 'Share of samples on an SVE instruction; SME kernels use them too, in streaming mode.';
COMMENT ON COLUMN operator_samples.simd_unit_share IS 'Share of samples on a SIMD or floating-point instruction.';
COMMENT ON COLUMN operator_samples.load_store_share IS 'Share of samples on a load or store.';

CREATE TABLE function_samples AS
SELECT
    run_id, kind, backend, delegate, position,
    coalesce(symbol, library || '+0x' || lower(hex(function_offset)), 'unknown address') AS kernel,
    any_value(symbol IS NOT NULL) AS named,
    any_value(library) AS library,
    any_value(kernel_family) AS kernel_family,
    any_value(role) AS role,
    any_value(data_types) AS data_types,
    any_value(tile) AS tile,
    any_value(isa) AS isa,
    sum(samples)::BIGINT AS samples,
    sum(near_boundary_samples)::BIGINT AS near_boundary_samples,
    coalesce(sum(samples) FILTER (is_sme), 0)::BIGINT AS sme_samples,
    sum(samples * (nullif(unit, 'unknown') = 'SME')::INTEGER) / sum(samples) AS sme_unit_share,
    sum(samples * (nullif(unit, 'unknown') = 'SVE')::INTEGER) / sum(samples) AS sve_unit_share,
    sum(samples * (nullif(unit, 'unknown') = 'SIMD/FP')::INTEGER) / sum(samples) AS simd_unit_share,
    sum(samples * (nullif(unit, 'unknown') = 'load/store')::INTEGER) / sum(samples) AS load_store_share
FROM judged_samples
GROUP BY
    run_id, kind, backend, delegate, position,
    coalesce(symbol, library || '+0x' || lower(hex(function_offset)), 'unknown address');
COMMENT ON TABLE function_samples IS 'Samples of each operator of each run, and of what is not an operator, by function: kernel_usage without the operators'' names.';
COMMENT ON COLUMN function_samples.kernel IS 'Name of the function, or its library and offset when it has no exported name.';
COMMENT ON COLUMN function_samples.named IS 'Whether the library exports its name.';
COMMENT ON COLUMN function_samples.sme_samples IS 'Those on SME, as in judged_samples.';
COMMENT ON COLUMN function_samples.sme_unit_share IS 'Share of samples on an instruction of the SME encoding space.';
COMMENT ON COLUMN function_samples.sve_unit_share IS 'Share of samples on an SVE instruction.';
COMMENT ON COLUMN function_samples.simd_unit_share IS 'Share of samples on a SIMD or floating-point instruction.';
COMMENT ON COLUMN function_samples.load_store_share IS 'Share of samples on a load or store.';
