-- What people ask of the runs of all history, made once when a run is stored, from its own rows alone: nothing here may
-- look beyond one run. Read after floors.sql. Each table is a Parquet file of the run as every other one is.
-- What depends on other runs, or only repeats columns of `runs`, is in views.sql.

-- From processes.py, as part_rounds.
CREATE TABLE category_rounds AS
SELECT
    run_id::run_name AS run_id, round::INTEGER AS round, category::VARCHAR AS category,
    operators::INTEGER AS operators, unknown_operators::INTEGER AS unknown_operators, inferences::INTEGER AS inferences,
    median_ns::DOUBLE AS median_ns, mean_ns::DOUBLE AS mean_ns, least_ns::DOUBLE AS least_ns, most_ns::DOUBLE AS most_ns,
    events::BIGINT AS events, total_ns::BIGINT AS total_ns
FROM category_processes;
COMMENT ON TABLE category_rounds IS 'Time of each category in each process of the etdump pass; Overhead is not an operator category.';
COMMENT ON COLUMN category_rounds.operators IS 'Operators of the category in one inference.';
COMMENT ON COLUMN category_rounds.unknown_operators IS 'Those the categoriser does not know (Other only).';
COMMENT ON COLUMN category_rounds.inferences IS 'Timed inferences that have an operator of the category.';
COMMENT ON COLUMN category_rounds.median_ns IS 'Median over those inferences.';
COMMENT ON COLUMN category_rounds.mean_ns IS 'Mean over all timed inferences of the process; means add up.';
COMMENT ON COLUMN category_rounds.least_ns IS 'The least the median can be: less than it for Overhead, which holds what the operators hide.';
COMMENT ON COLUMN category_rounds.most_ns IS 'The most the median can be: XNNPACK hides up to a microsecond of each operator.';
COMMENT ON COLUMN category_rounds.events IS 'Rows of timeline in all those inferences.';
COMMENT ON COLUMN category_rounds.total_ns IS 'Their time; NULL when emulated.';

-- Means add up, and one disturbed round decides them: they leave such rounds out, by the same rule in every arm.
-- Speedups leave none out: they rest on medians, over all pairs of rounds.
CREATE TABLE part_rounds AS
WITH rounds AS (
    SELECT
        run_id::run_name AS run_id, round::INTEGER AS round, inferences::INTEGER AS inferences,
        COLUMNS('_ns$')::DOUBLE,
        delegate_calls::INTEGER AS delegate_calls, operators::INTEGER AS operators,
        portable_operators::INTEGER AS portable_operators
    FROM part_processes
),
timed AS (
    SELECT
        *,
        inference_ns / nullif(median(inference_ns) OVER (PARTITION BY run_id), 0) AS deviation,
        coalesce(deviation NOT BETWEEN 1 / 1.25 AND 1.25, false) AS odd
    FROM rounds
)
SELECT
    * EXCLUDE (odd),
    odd AND 2 * count(*) FILTER (odd) OVER (PARTITION BY run_id) < count(*) OVER (PARTITION BY run_id) AS disturbed
FROM timed;
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
COMMENT ON COLUMN part_rounds.deviation IS 'Mean inference of the round over that of the run''s middle round.';
COMMENT ON COLUMN part_rounds.disturbed IS 'Whether that is a factor of more than 1.25, in either direction. Where half of the rounds would be, none is: then it is no exception.';

CREATE TABLE run_times AS
WITH programs AS (
    SELECT
        run_id,
        md5(string_agg(concat_ws(':', backend, delegate, position, op_type), ',' ORDER BY backend, delegate, position))
            AS program
    -- Of all rounds: a later one may have taken a branch that the first did not.
    FROM (SELECT DISTINCT run_id, backend, delegate, position, op_type FROM rounds_of_operators)
    GROUP BY run_id
),
spread AS (
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
)
SELECT run_id, program, rounds, inferences, median_ns, min_ns, p05_ns, p95_ns, max_ns, round_cv
FROM (SELECT run_id FROM runs)
LEFT JOIN programs USING (run_id)
LEFT JOIN rounds USING (run_id)
LEFT JOIN spread USING (run_id);
COMMENT ON TABLE run_times IS 'One row per run: its latency, and which operators it has.';
COMMENT ON COLUMN run_times.program IS 'Hash of the types and places of its operators: runs of the same operators have the same. NULL without a trace.';
COMMENT ON COLUMN run_times.rounds IS 'Rounds of the latency pass: the n of the median. NULL without that pass.';
COMMENT ON COLUMN run_times.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN run_times.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN run_times.min_ns IS 'Fastest inference.';
COMMENT ON COLUMN run_times.p05_ns IS '5 % quantile over all inferences.';
COMMENT ON COLUMN run_times.p95_ns IS '95 % quantile over all inferences.';
COMMENT ON COLUMN run_times.max_ns IS 'Slowest inference.';
COMMENT ON COLUMN run_times.round_cv IS 'Standard deviation of the round medians over their mean; NULL with one round.';

-- `sme2_obstacle` are reasons that hold whatever the machine: no kernel of the library fits. Which packed type
-- (PF32, PF16, PQS8) exists for which operator is that of the library's symbols.
-- Emulated shares are of counted instructions: they tell which units were used, and not for how long. Where no
-- instruction could be told, as on another instruction set, shares are NULL.
CREATE TABLE operator_details AS
WITH execute AS (
    SELECT run_id, count(*) AS rounds, avg(inference_ns) AS inference_ns
    FROM part_rounds
    WHERE NOT disturbed
    GROUP BY run_id
),
summary AS (
    SELECT
        run_id, backend, delegate, position,
        any_value(name) AS name,
        any_value(op_type) AS op_type,
        any_value(data_type) AS data_type,
        any_value(category) AS category,
        bool_and(known) AS known,
        any_value(sme2_evidence) = 'name' AS named_sme2,
        count(*)::INTEGER AS rounds,
        sum(inferences)::INTEGER AS inferences,
        median(median_ns) AS median_ns,
        avg(mean_ns) FILTER (NOT disturbed) AS mean_ns,
        avg(mean_most_ns) FILTER (NOT disturbed) AS mean_most_ns,
        -- Rounds weigh the same, however many inferences they had time for, as in every other mean.
        sum(mean_ns * inferences / of_round) FILTER (NOT disturbed) AS spent_ns
    FROM rounds_of_operators
    JOIN (SELECT run_id, round, disturbed, inferences AS of_round FROM part_rounds) USING (run_id, round)
    GROUP BY run_id, backend, delegate, position
),
-- A place is one operator of one sequence, so the operators of a sequence are those of its first inference. What
-- was never run together is never neighbours, whenever it started.
started AS (
    SELECT
        run_id, backend, delegate, position,
        min((round::BIGINT << 32) + iteration) AS first_inference,
        avg(start_ns) AS start_ns
    FROM timeline
    WHERE kind = 'operator' AND NOT is_warmup
    GROUP BY run_id, backend, delegate, position
),
ordered AS (
    SELECT
        run_id, backend, delegate, position,
        dense_rank() OVER (PARTITION BY run_id ORDER BY first_inference)::INTEGER AS path,
        row_number() OVER (
            PARTITION BY run_id ORDER BY first_inference, start_ns, delegate, position
        )::INTEGER AS execution_order
    FROM started
),
inference_work AS (
    SELECT run_id, sum(instructions) AS inference_instructions
    FROM executed_functions
    WHERE kind IN ('operator', 'delegate_overhead', 'framework_overhead') AND NOT {{IS_WAITING}}
    GROUP BY run_id
),
-- Samples, or counts of instructions.
executed AS (
    SELECT
        run_id, backend, delegate, position,
        sum(samples)::BIGINT AS samples,
        sum(near_boundary_samples)::BIGINT AS near_boundary_samples,
        coalesce(sum(samples) FILTER (is_sme), 0)::BIGINT AS sme_samples,
        coalesce(sum(samples - near_boundary_samples) FILTER (is_telling), 0)::BIGINT AS telling_samples,
        coalesce(sum(samples - near_boundary_samples) FILTER (is_sme), 0)::BIGINT AS certain_sme_samples,
        nullif(sum(instructions) FILTER (NOT {{IS_WAITING}}), 0)::BIGINT AS instructions,
        CASE WHEN sum(instructions) > 0 THEN sum(multiply_accumulates) END::BIGINT AS macs_executed,
        CASE WHEN sum(instructions) > 0
            THEN coalesce(sum(multiply_accumulates) FILTER ({{IS_ON_UNIT}}), 0)
        END::BIGINT AS macs_on_unit,
        CASE WHEN sum(instructions) > 0
            THEN coalesce(sum(instructions) FILTER (class = 'outer product'), 0) END::BIGINT AS outer_products,
        CASE WHEN sum(instructions) > 0
            THEN coalesce(sum(instructions) FILTER (class = 'streaming entry'), 0) END::BIGINT AS streaming_entries,
        CASE WHEN sum(instructions) > 0
            THEN coalesce(sum(instructions) FILTER (role = 'pack'), 0) END::BIGINT AS packing_instructions,
        sum(weight * (nullif(unit, 'unknown') = 'SME')::INTEGER) / sum(weight) AS sme_unit_share,
        sum(weight * (nullif(unit, 'unknown') = 'SVE')::INTEGER) / sum(weight) AS sve_unit_share,
        sum(weight * (nullif(unit, 'unknown') = 'SIMD/FP')::INTEGER) / sum(weight) AS simd_unit_share,
        sum(weight * (nullif(unit, 'unknown') = 'load/store')::INTEGER) / sum(weight) AS load_store_share
    FROM executed_functions
    WHERE kind = 'operator'
    GROUP BY run_id, backend, delegate, position
),
known AS (
    SELECT
        summary.* EXCLUDE (spent_ns, named_sme2),
        -- One that ran in disturbed rounds alone took nothing of the others; emulated times are NULL.
        coalesce(summary.spent_ns, 0 * execute.inference_ns) / execute.rounds AS per_inference_ns,
        per_inference_ns / nullif(execute.inference_ns, 0) AS share,
        ordered.path,
        ordered.execution_order,
        operators.* EXCLUDE (variant, target, run_id, backend, delegate, position),
        coalesce(executed.samples, 0) AS samples,
        coalesce(executed.near_boundary_samples, 0) AS near_boundary_samples,
        coalesce(executed.telling_samples, 0) AS telling_samples,
        coalesce(executed.certain_sme_samples, 0) AS certain_sme_samples,
        CASE WHEN runs.fidelity IS DISTINCT FROM 'reference' THEN coalesce(executed.sme_samples, 0) END AS sme_samples,
        executed.instructions, executed.instructions / inference_instructions AS instructions_share,
        executed.macs_executed, executed.macs_on_unit, executed.outer_products,
        executed.streaming_entries, executed.packing_instructions,
        executed.sme_unit_share, executed.sve_unit_share, executed.simd_unit_share, executed.load_store_share,
        runs.fidelity, runs.sme2,
        runs.fidelity IS DISTINCT FROM 'reference' AND coalesce(summary.named_sme2, false) AS named,
        string_split(replace(coalesce(summary.data_type, ''), ' ', ''), ',') AS types,
        -- The element type that decides which packed kernel there could be.
        CASE
            WHEN list_has_any(types, ['QP8']) THEN 'QP8'
            WHEN list_has_any(types, ['QS8', 'QC8', 'PQS8']) THEN 'int8'
            WHEN list_has_any(types, ['F16', 'PF16']) THEN 'F16'
            WHEN list_has_any(types, ['F32', 'PF32']) THEN 'F32'
        END AS element
    FROM summary
    JOIN runs USING (run_id)
    JOIN execute USING (run_id)
    JOIN ordered
        ON ordered.run_id = summary.run_id AND ordered.backend = summary.backend
        AND ordered.delegate IS NOT DISTINCT FROM summary.delegate AND ordered.position = summary.position
    LEFT JOIN operators
        ON operators.run_id = summary.run_id AND operators.backend = summary.backend
        AND operators.delegate IS NOT DISTINCT FROM summary.delegate AND operators.position = summary.position
    LEFT JOIN executed
        ON executed.run_id = summary.run_id AND executed.backend = summary.backend
        AND executed.delegate IS NOT DISTINCT FROM summary.delegate AND executed.position = summary.position
    LEFT JOIN inference_work ON inference_work.run_id = summary.run_id
),
judged AS (
    SELECT
        *,
        CASE
            WHEN fidelity = 'reference' OR category NOT IN ('CONV', 'GEMM') THEN NULL
            WHEN backend = 'portable' THEN 'not delegated'
            -- What other delegates compute with is not known.
            WHEN backend <> 'xnnpack' THEN NULL
            WHEN regexp_matches(name, '\b(DWConv|VMulCAddC)\b') THEN 'depthwise'
            -- Shapes inside XNNPACK have the channels last.
            WHEN groups > 1 AND groups = TRY_CAST(string_split(input_shape, 'x')[-1] AS INTEGER) THEN 'depthwise'
            -- With one input channel its only group is a channel, and the exporter takes it for depthwise.
            WHEN node_kind = 'XNNDepthwiseConv2d' AND groups = 1 THEN 'shape'
            WHEN list_has_any(types, ['QB4W', 'QU8', 'QDU8']) THEN 'quantisation scheme'
            -- Weights alone are quantised.
            WHEN types[1] IN ('F32', 'F16') AND list_has_any(types, ['QC8W', 'QC4W', 'QC2W'])
                THEN 'quantisation scheme'
            -- An arm without SME2 cannot tell: with it, the same operator may be QP8, which has SME2 kernels.
            WHEN sme2 = 'on' AND list_has_any(types, ['QD8']) THEN 'quantisation scheme'
            WHEN op_type = 'Deconvolution' AND element IN ('F32', 'F16') THEN 'data type'
            WHEN list_has_any(types, ['BF16']) THEN 'data type'
            -- A 1x1 convolution. A linear layer of the same name has a kernel, so without a node only a
            -- run with SME2 on can tell.
            WHEN op_type = 'Fully Connected' AND element = 'F16' AND coalesce(node_kind LIKE '%Conv%', sme2 = 'on')
                THEN 'data type'
        END AS sme2_obstacle,
        -- Where the packed name stands for some of a kind, it is missing for others because their kernel is another.
        sme2_obstacle IS NOT NULL
            OR coalesce(element <> 'QP8' AND bool_or(named) OVER (PARTITION BY run_id, op_type, element), false) AS no_kernel
    FROM known
),
placed AS (
    SELECT *, {{EXECUTED}} AS executed, {{UNIT_STATE}} AS on_sme_unit
    FROM judged
)
SELECT
    placed.* EXCLUDE (fidelity, sme2, types, no_kernel),
    bool_or(on_sme_unit = 'on') OVER (PARTITION BY run_id, op_type, element) AS kind_is_on,
    -- Two operations per multiply-accumulate, over the mean that is shown beside it. No rate where XNNPACK's whole
    -- microseconds hide more than a fifth.
    CASE WHEN mean_most_ns <= 1.2 * mean_ns THEN 2 * macs / nullif(mean_ns, 0) END AS gops,
    CASE WHEN gops IS NOT NULL THEN if(regexp_matches(coalesce(data_type, ''), '^P?Q'), 'GOP/s', 'GFLOP/s')
    END AS rate_unit,
    CASE WHEN coalesce(per_inference_ns, instructions) IS NOT NULL THEN
        row_number() OVER (
            PARTITION BY run_id ORDER BY per_inference_ns DESC, instructions DESC, median_ns DESC, execution_order
        )
    END::INTEGER AS rank,
    sum(share) OVER (
        PARTITION BY run_id ORDER BY per_inference_ns DESC, median_ns DESC, execution_order
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS cumulative_share
FROM placed;
COMMENT ON TABLE operator_details IS 'What operator_facts, operator_summary, bottlenecks and missed_sme2 show of each operator of each run.';
COMMENT ON COLUMN operator_details.sme_samples IS 'Those in SME or SME2 kernels, or on an SME instruction; NULL on a reference.';
COMMENT ON COLUMN operator_details.telling_samples IS 'Samples in kernels that compute, on SME or not, away from the border to another operator. Threads that wait are not among them.';
COMMENT ON COLUMN operator_details.certain_sme_samples IS 'Telling samples on SME.';
COMMENT ON COLUMN operator_details.instructions IS 'Instructions that it executed in one inference, where they are counted: under emulation. They are work, not time. Those in which threads share it out and wait for one another are left out: with one thread they are the same in every run, with several but for a few, because they do not always divide tiles alike.';
COMMENT ON COLUMN operator_details.instructions_share IS 'Instructions over those of the inference, which has the delegates'' and the framework''s, too.';
COMMENT ON COLUMN operator_details.macs_executed IS 'Multiply-accumulates that these are. More than macs: tiles and vectors that are not full multiply all the same.';
COMMENT ON COLUMN operator_details.macs_on_unit IS 'Those of them that the SME unit does, by outer products and multiplications to ZA.';
COMMENT ON COLUMN operator_details.outer_products IS 'Outer products among the instructions.';
COMMENT ON COLUMN operator_details.streaming_entries IS 'How often it entered streaming mode.';
COMMENT ON COLUMN operator_details.packing_instructions IS 'Instructions in functions that pack, by their names.';
COMMENT ON COLUMN operator_details.sme_unit_share IS 'Share of samples, or of counted instructions, on the SME unit.';
COMMENT ON COLUMN operator_details.sve_unit_share IS 'Share of samples or counted instructions that are SVE; SME kernels use them too, in streaming mode.';
COMMENT ON COLUMN operator_details.simd_unit_share IS 'Share of samples or counted instructions that are SIMD or floating-point.';
COMMENT ON COLUMN operator_details.load_store_share IS 'Share of samples or counted instructions that load or store.';
COMMENT ON COLUMN operator_details.on_sme_unit IS 'Whether a convolution or matrix product runs on the SME unit: on, off or unknown. From its counted instructions; else from its samples in kernels that compute where there are enough, else from its name, else from its type (sme2_obstacle, or SME2 taken away). NULL for all other operators and on a reference.';
COMMENT ON COLUMN operator_details.element IS 'What is multiplied, whatever its packing: F32, F16, int8 or QP8 (quantised while it runs).';
COMMENT ON COLUMN operator_details.sme2_obstacle IS 'Why no SME2 kernel of the library fits a convolution or matrix product: not delegated, depthwise, shape, quantisation scheme or data type. NULL where nothing stands in the way.';
COMMENT ON COLUMN operator_details.samples IS 'Samples attributed to the operator, all threads.';
COMMENT ON COLUMN operator_details.gops IS 'Achieved 10^9 operations per second, two per multiply-accumulate, over the mean time; NULL when emulated, not counted, or too short for XNNPACK''s whole microseconds.';
COMMENT ON COLUMN operator_details.rate_unit IS 'GOP/s where the operator multiplies integers, otherwise GFLOP/s; NULL without a rate.';
COMMENT ON COLUMN operator_details.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN operator_details.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN operator_details.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN operator_details.mean_ns IS 'Mean over the inferences that ran it, without disturbed rounds.';
COMMENT ON COLUMN operator_details.per_inference_ns IS 'What the operator takes of an inference, whether all ran it or only some: its time per inference of a round, as the mean over rounds that were not disturbed. These times and the overhead add up to the inference. NULL when emulated.';
COMMENT ON COLUMN operator_details.mean_most_ns IS 'The most the mean can be: XNNPACK hides up to a microsecond of each of its operators. The same as the mean elsewhere.';
COMMENT ON COLUMN operator_details.share IS 'per_inference_ns over the mean of Method::execute; NULL when emulated.';
COMMENT ON COLUMN operator_details.path IS 'Which of the operator sequences that inferences took it belongs to, from 1.';
COMMENT ON COLUMN operator_details.execution_order IS 'Order within the inference, over delegates and portable operators, from 1; another sequence goes on where the one before it ended.';
COMMENT ON COLUMN operator_details.rank IS '1 for the operator that takes the most of an inference; when emulated, for the one that executes the most instructions, and NULL where they are not counted.';
COMMENT ON COLUMN operator_details.cumulative_share IS 'Share of this operator and all of a smaller rank; NULL when emulated.';
COMMENT ON COLUMN operator_details.named IS 'Whether its name implies an SME2 kernel.';
COMMENT ON COLUMN operator_details.executed IS 'Whether it was sampled in an SME kernel, or counted multiplying on the SME unit.';
COMMENT ON COLUMN operator_details.kind_is_on IS 'Whether any operator of its type and element is on the unit in this run.';

CREATE TABLE category_times AS
WITH categories AS (
    SELECT
        run_id, category,
        max(operators)::INTEGER AS operators,
        max(unknown_operators)::INTEGER AS unknown_operators,
        count(*)::INTEGER AS rounds,
        median(median_ns) AS median_ns,
        avg(mean_ns) FILTER (NOT disturbed) AS mean_ns,
        sum(events)::BIGINT AS events,
        sum(total_ns)::BIGINT AS total_ns
    FROM category_rounds
    JOIN (SELECT run_id, round, disturbed FROM part_rounds) USING (run_id, round)
    GROUP BY run_id, category
),
counted AS (
    SELECT run_id, category, sum(instructions)::BIGINT AS instructions
    FROM operator_details
    GROUP BY run_id, category
    UNION ALL
    SELECT run_id, 'Overhead', nullif(sum(instructions), 0)::BIGINT
    FROM executed_functions
    WHERE kind IN ('delegate_overhead', 'framework_overhead') AND NOT {{IS_WAITING}}
    GROUP BY run_id
)
SELECT
    categories.*,
    mean_ns / nullif(sum(mean_ns) OVER (PARTITION BY run_id), 0) AS share,
    CASE WHEN sum(counted.instructions) OVER (PARTITION BY run_id) > 0
        THEN coalesce(counted.instructions, 0)
    END AS instructions,
    counted.instructions / sum(counted.instructions) OVER (PARTITION BY run_id) AS instructions_share
FROM categories
LEFT JOIN counted USING (run_id, category);
COMMENT ON TABLE category_times IS 'The times of category_summary.';
COMMENT ON COLUMN category_times.operators IS 'Operators of the category in one inference.';
COMMENT ON COLUMN category_times.unknown_operators IS 'Those the categoriser does not know (Other only).';
COMMENT ON COLUMN category_times.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN category_times.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN category_times.mean_ns IS 'Mean time per inference without disturbed rounds; the rows of a run add up to the inference.';
COMMENT ON COLUMN category_times.events IS 'Rows of timeline in all timed inferences.';
COMMENT ON COLUMN category_times.total_ns IS 'Their time; NULL when emulated.';
COMMENT ON COLUMN category_times.share IS 'Mean time over the sum of the run''s rows.';
COMMENT ON COLUMN category_times.instructions IS 'Instructions executed in one inference, as in operator_details; of Overhead, those of the delegate calls and the framework around operators.';
COMMENT ON COLUMN category_times.instructions_share IS 'Instructions over the sum of the run''s rows.';

CREATE TABLE function_samples AS
WITH functions AS (
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
        nullif(sum(instructions), 0)::BIGINT AS instructions,
        sum(weight)::BIGINT AS weight,
        sum(weight * (nullif(unit, 'unknown') = 'SME')::INTEGER) / sum(weight) AS sme_unit_share,
        sum(weight * (nullif(unit, 'unknown') = 'SVE')::INTEGER) / sum(weight) AS sve_unit_share,
        sum(weight * (nullif(unit, 'unknown') = 'SIMD/FP')::INTEGER) / sum(weight) AS simd_unit_share,
        sum(weight * (nullif(unit, 'unknown') = 'load/store')::INTEGER) / sum(weight) AS load_store_share
    FROM executed_functions
    GROUP BY
        run_id, kind, backend, delegate, position,
        coalesce(symbol, library || '+0x' || lower(hex(function_offset)), 'unknown address')
)
SELECT
    functions.* EXCLUDE (weight),
    functions.weight / sum(functions.weight) OVER (
        PARTITION BY functions.run_id, functions.kind, functions.backend, functions.delegate, functions.position
    ) AS share_of_operator,
    functions.weight / sum(functions.weight) OVER (PARTITION BY functions.run_id) AS share_of_run,
    placed.name, placed.op_type, placed.category, placed.module, placed.source
FROM functions
LEFT JOIN operator_details AS placed
    ON placed.run_id = functions.run_id AND functions.kind = 'operator' AND placed.backend = functions.backend
    AND placed.delegate IS NOT DISTINCT FROM functions.delegate AND placed.position = functions.position;
COMMENT ON TABLE function_samples IS 'Samples or counted instructions of each operator of each run, and of what is not an operator, by function: what kernel_usage shows.';
COMMENT ON COLUMN function_samples.kernel IS 'Name of the function, or its library and offset when it has no exported name.';
COMMENT ON COLUMN function_samples.named IS 'Whether the library exports its name.';
COMMENT ON COLUMN function_samples.sme_samples IS 'Those on SME, as in judged_samples.';
COMMENT ON COLUMN function_samples.instructions IS 'Instructions executed in it in one inference, where they are counted.';
COMMENT ON COLUMN function_samples.sme_unit_share IS 'Share of samples, or of counted instructions, on the SME unit.';
COMMENT ON COLUMN function_samples.sve_unit_share IS 'Share of samples or counted instructions that are SVE.';
COMMENT ON COLUMN function_samples.simd_unit_share IS 'Share of samples or counted instructions that are SIMD or floating-point.';
COMMENT ON COLUMN function_samples.load_store_share IS 'Share of samples or counted instructions that load or store.';
COMMENT ON COLUMN function_samples.share_of_operator IS 'Samples or instructions in this function over all of the operator.';
COMMENT ON COLUMN function_samples.share_of_run IS 'Samples or instructions in this function over all of the run.';

CREATE TABLE module_times AS
WITH placed AS (
    SELECT
        run_id, category, execution_order, macs, instructions, per_inference_ns AS mean_ns,
        -- What an operator hides when it runs is the most that it hides of an inference.
        per_inference_ns + (mean_most_ns - details.mean_ns) AS mean_most_ns,
        data_type, on_sme_unit, module_type,
        CASE
            WHEN module <> '' THEN string_split(module, '.')
            -- Of the model's own forward: it has a line, but no module below the model.
            WHEN source IS NOT NULL THEN ['(top level)']
            ELSE ['(unattributed)']
        END AS path
    FROM operator_details AS details
    UNION ALL BY NAME
    SELECT run_id, instructions, mean_ns, ['(overhead)'] AS path
    FROM category_times
    WHERE category = 'Overhead'
),
levels AS (
    SELECT *, unnest(range(0, len(path) + 1)) AS depth
    FROM placed
),
modules AS (
    SELECT
        run_id, depth::INTEGER AS depth, array_to_string(path[:depth], '.') AS module,
        any_value(module_type) FILTER (depth = len(path)) AS module_type,
        count(category)::INTEGER AS operators,
        count(category) FILTER (depth = len(path))::INTEGER AS own_operators,
        count(category) FILTER (category IN ('CONV', 'GEMM'))::INTEGER AS matrix_operators,
        count(*) FILTER (on_sme_unit = 'on')::INTEGER AS sme2_operators,
        count(*) FILTER (on_sme_unit = 'unknown')::INTEGER AS sme2_unknown_operators,
        min(execution_order) AS first_operator,
        sum(macs)::BIGINT AS macs,
        sum(instructions)::BIGINT AS instructions,
        sum(mean_ns) AS mean_ns,
        CASE WHEN sum(mean_ns) IS NOT NULL THEN coalesce(sum(mean_ns) FILTER (depth = len(path)), 0) END AS own_ns,
        sum(coalesce(mean_most_ns, mean_ns)) AS mean_most_ns,
        bool_or(macs > 0 AND regexp_matches(coalesce(data_type, ''), '^P?Q')) AS integers
    FROM levels
    GROUP BY run_id, depth, array_to_string(path[:depth], '.')
)
SELECT
    * EXCLUDE (mean_most_ns, integers),
    CASE WHEN depth > 1 THEN regexp_replace(module, '\.[^.]*$', '') WHEN depth = 1 THEN '' END AS parent,
    mean_ns / nullif(max(mean_ns) FILTER (depth = 0) OVER (PARTITION BY run_id), 0) AS share,
    instructions / max(instructions) FILTER (depth = 0) OVER (PARTITION BY run_id) AS instructions_share,
    -- As in operator_details.
    CASE WHEN mean_most_ns <= 1.2 * mean_ns THEN 2 * macs / nullif(mean_ns, 0) END AS gops,
    CASE WHEN gops IS NOT NULL THEN if(integers, 'GOP/s', 'GFLOP/s') END AS rate_unit
FROM modules;
COMMENT ON TABLE module_times IS 'What module_summary shows of each module of each run.';
COMMENT ON COLUMN module_times.depth IS 'Level: 0 is the whole inference, 1 its parts.';
COMMENT ON COLUMN module_times.module IS 'Path of the module; (top level) for the model''s own forward, (unattributed) for operators without a place in the model, such as inserted transposes, (overhead) for what is no operator. Empty at depth 0.';
COMMENT ON COLUMN module_times.parent IS 'The module one level up; NULL at depth 0.';
COMMENT ON COLUMN module_times.module_type IS 'Class of the module; NULL if it has no operators itself.';
COMMENT ON COLUMN module_times.operators IS 'Operators in the module and below it.';
COMMENT ON COLUMN module_times.own_operators IS 'Operators of the module itself.';
COMMENT ON COLUMN module_times.matrix_operators IS 'CONV and GEMM operators in the module and below it.';
COMMENT ON COLUMN module_times.sme2_operators IS 'Those of them on the SME unit, as in operator_facts; NULL on a reference.';
COMMENT ON COLUMN module_times.sme2_unknown_operators IS 'Those for which that is unknown; NULL on a reference.';
COMMENT ON COLUMN module_times.first_operator IS 'Execution order of its first operator, as in bottlenecks; NULL without operators.';
COMMENT ON COLUMN module_times.macs IS 'Multiply-accumulates of one inference, where they are counted.';
COMMENT ON COLUMN module_times.instructions IS 'Instructions of the module and all below it in one inference, as in operator_details.';
COMMENT ON COLUMN module_times.instructions_share IS 'Instructions over those of the inference.';
COMMENT ON COLUMN module_times.mean_ns IS 'Mean time of the module and all below it; NULL when emulated.';
COMMENT ON COLUMN module_times.own_ns IS 'Mean time of the module''s own operators; NULL when emulated.';
COMMENT ON COLUMN module_times.share IS 'Mean time over mean Method::execute; NULL when emulated.';
COMMENT ON COLUMN module_times.gops IS '10^9 operations per second, two per multiply-accumulate, over all time of the module; NULL when emulated, or too short for XNNPACK''s whole microseconds.';
COMMENT ON COLUMN module_times.rate_unit IS 'GOP/s where any of it multiplies integers, otherwise GFLOP/s; NULL without a rate.';
