-- The views people query. Every statistic that SQL, report, UI and command line show of a single
-- run is defined here and only here; comparisons between arms come from analysis/comparison.py.

-- A state that is measured alone is a baseline: it takes nothing from a pair of the same program.
CREATE VIEW latest_runs AS
WITH measured AS (
    SELECT
        * REPLACE (coalesce(method, 'forward') AS method),
        first_value(pte_sha256) OVER (
            PARTITION BY variant, platform, device, arch, threads, cpus, power_mode, coalesce(method, 'forward')
            ORDER BY coalesce(sequence, 0) DESC, started_at DESC, run_id DESC
        ) AS newest_program
    FROM runs
    WHERE experiment = 'sme2'
)
SELECT * EXCLUDE (newest_program)
FROM measured
QUALIFY row_number() OVER (
    PARTITION BY variant, platform, device, arch, threads, cpus, power_mode, method, sme2
    ORDER BY
        coalesce(paired AND pte_sha256 = newest_program, false) DESC,
        coalesce(sequence, 0) DESC, started_at DESC, run_id DESC
) = 1;
COMMENT ON VIEW latest_runs IS 'The newest run that was measured for SME2 of every variant, platform, device, architecture, thread count, choice of CPUs, power mode, method and SME2 state; columns as in runs. A state that was measured alone is here only while there is no pair of the same program. Arms of other comparisons are in runs and in history.';

-- Views that name the model of a run take its whole series from here: no query needs `runs` to keep series apart.
CREATE VIEW run_series AS
SELECT
    run_id, session_id, variant, model, precision, platform, sme2,
    device, arch, threads, cpus, power_mode, coalesce(method, 'forward') AS method, fidelity, started_at
FROM runs;
COMMENT ON VIEW run_series IS 'What each run is. Runs of one series, which may be compared over time, have the same variant, platform, device, architecture, thread count, choice of CPUs, power mode and method. Views that name the model of a run begin with these columns.';

CREATE VIEW latency_summary AS
SELECT
    run.*,
    times.rounds, times.inferences, times.median_ns, times.min_ns, times.p05_ns, times.p95_ns, times.max_ns,
    times.round_cv,
    runs.passes_agree, runs.passes_reason, runs.tracer_overhead, runs.tracer_overhead_low, runs.tracer_overhead_high,
    runs.sampler_overhead,
    runs.load_ns, runs.peak_memory_bytes
FROM run_times AS times
JOIN run_series AS run USING (run_id)
JOIN runs USING (run_id)
WHERE times.rounds IS NOT NULL;
COMMENT ON VIEW latency_summary IS 'Inference latency of each run, from the pass without tracer.';
COMMENT ON COLUMN latency_summary.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN latency_summary.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN latency_summary.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN latency_summary.min_ns IS 'Fastest inference.';
COMMENT ON COLUMN latency_summary.p05_ns IS '5 % quantile over all inferences.';
COMMENT ON COLUMN latency_summary.p95_ns IS '95 % quantile over all inferences.';
COMMENT ON COLUMN latency_summary.max_ns IS 'Slowest inference.';
COMMENT ON COLUMN latency_summary.round_cv IS 'Standard deviation of the round medians over their mean; NULL with one round.';
COMMENT ON COLUMN latency_summary.load_ns IS 'Model load time, median.';
COMMENT ON COLUMN latency_summary.peak_memory_bytes IS 'Peak memory, largest process.';

CREATE VIEW programs AS
SELECT run_id, program
FROM run_times
WHERE program IS NOT NULL;
COMMENT ON VIEW programs IS 'Which operators each run has in which places.';

CREATE VIEW traced_rounds AS
SELECT run_id, round, deviation, disturbed
FROM part_rounds;
COMMENT ON VIEW traced_rounds IS 'The rounds of the etdump pass, and which of them are disturbed: means, shares and ranks leave those out.';

CREATE VIEW operator_summary AS
SELECT
    run.*,
    details.delegate, details.position, details.name, details.op_type, details.data_type,
    details.category, details.known, details.backend,
    CASE WHEN run.fidelity = 'reference' THEN NULL WHEN details.named THEN 'name' ELSE 'none' END AS sme2_evidence,
    details.rounds, details.inferences, details.median_ns, details.mean_ns, details.mean_most_ns,
    details.per_inference_ns, details.share
FROM operator_details AS details
JOIN run_series AS run USING (run_id);
COMMENT ON VIEW operator_summary IS 'Time of each operator of each run. An operator is its delegate and position, not its name.';
COMMENT ON COLUMN operator_summary.sme2_evidence IS 'By name alone. name: the operator''s name implies an SME2 kernel; none: it does not. NULL on a reference, which says nothing about SME2.';
COMMENT ON COLUMN operator_summary.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN operator_summary.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN operator_summary.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN operator_summary.mean_ns IS 'Mean over the inferences that ran it, without disturbed rounds.';
COMMENT ON COLUMN operator_summary.per_inference_ns IS 'What the operator takes of an inference, whether all ran it or only some: its time per inference of a round, as the mean over rounds that were not disturbed. These times and the overhead add up to the inference. NULL when emulated.';
COMMENT ON COLUMN operator_summary.mean_most_ns IS 'The most the mean can be: XNNPACK hides up to a microsecond of each of its operators. The same as the mean elsewhere.';
COMMENT ON COLUMN operator_summary.share IS 'per_inference_ns over the mean of Method::execute; NULL when emulated.';

CREATE VIEW operator_facts AS
WITH registered AS (
    SELECT
        run_id,
        bool_or(kernel_family IN ('igemm', 'imatmul')) AS conv,
        bool_or(kernel_family IN ('gemm', 'matmul')) AS gemm
    FROM registered_kernels
    WHERE isa IN ('sme', 'sme2')
    GROUP BY run_id
)
SELECT
    run.*,
    details.* EXCLUDE (variant, target, run_id, named, executed),
    CASE
        WHEN run.fidelity = 'reference' THEN NULL
        WHEN executed THEN 'executed'
        WHEN named THEN 'name'
        WHEN backend = 'xnnpack' AND (
            (category = 'CONV' AND (registered.conv OR registered.gemm)) OR (category = 'GEMM' AND registered.gemm)
        ) THEN 'registered'
        ELSE 'none'
    END AS sme2_evidence
FROM operator_details AS details
JOIN run_series AS run USING (run_id)
LEFT JOIN registered ON registered.run_id = details.run_id;
COMMENT ON VIEW operator_facts IS 'All that is known of each operator of each run: time, source, work, and the evidence of its kernel.';
COMMENT ON COLUMN operator_facts.sme2_evidence IS 'executed (sampled in an SME kernel, or counted multiplying on the SME unit), name (its name implies one), registered (the log offered one for this kind of operator) or none. NULL on a reference, which says nothing about SME2.';
COMMENT ON COLUMN operator_facts.on_sme_unit IS 'Whether a convolution or matrix product runs on the SME unit: on, off or unknown. From its counted instructions; else from its samples in kernels that compute where there are enough, else from its name, else from its type (sme2_obstacle, or SME2 taken away). NULL for all other operators and on a reference.';
COMMENT ON COLUMN operator_facts.element IS 'What is multiplied, whatever its packing: F32, F16, int8 or QP8 (quantised while it runs).';
COMMENT ON COLUMN operator_facts.sme2_obstacle IS 'Why no SME2 kernel of the library fits a convolution or matrix product: not delegated, depthwise, shape, quantisation scheme or data type. NULL where nothing stands in the way.';
COMMENT ON COLUMN operator_facts.instructions_share IS 'Instructions over those of the inference, which has the delegates'' and the framework''s, too.';
COMMENT ON COLUMN operator_facts.samples IS 'Samples attributed to the operator, all threads.';
COMMENT ON COLUMN operator_facts.sme_samples IS 'Those in SME or SME2 kernels, or on an SME instruction; NULL on a reference.';
COMMENT ON COLUMN operator_facts.gops IS 'Achieved 10^9 operations per second, two per multiply-accumulate, over the mean time; NULL when emulated, not counted, or too short for XNNPACK''s whole microseconds.';
COMMENT ON COLUMN operator_facts.rate_unit IS 'GOP/s where the operator multiplies integers, otherwise GFLOP/s; NULL without a rate.';
COMMENT ON COLUMN operator_facts.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN operator_facts.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN operator_facts.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN operator_facts.mean_ns IS 'Mean over the inferences that ran it, without disturbed rounds.';
COMMENT ON COLUMN operator_facts.per_inference_ns IS 'What the operator takes of an inference, whether all ran it or only some: its time per inference of a round, as the mean over rounds that were not disturbed. These times and the overhead add up to the inference. NULL when emulated.';
COMMENT ON COLUMN operator_facts.mean_most_ns IS 'The most the mean can be, as in operator_summary.';
COMMENT ON COLUMN operator_facts.share IS 'per_inference_ns over the mean of Method::execute; NULL when emulated.';

CREATE VIEW kernel_usage AS
SELECT
    run.*,
    kernels.kind, kernels.backend, kernels.delegate, kernels.position,
    kernels.name, kernels.op_type, kernels.category, kernels.module, kernels.source,
    kernels.kernel, kernels.named, kernels.library, kernels.kernel_family, kernels.role, kernels.data_types,
    kernels.tile, kernels.isa, kernels.samples, kernels.near_boundary_samples, kernels.instructions,
    CASE WHEN run.fidelity IS DISTINCT FROM 'reference' THEN kernels.sme_samples END AS sme_samples,
    kernels.share_of_operator, kernels.share_of_run,
    kernels.sme_unit_share, kernels.sve_unit_share, kernels.simd_unit_share, kernels.load_store_share
FROM function_samples AS kernels
JOIN run_series AS run USING (run_id);
COMMENT ON VIEW kernel_usage IS 'Which functions each operator ran in, by samples or, under emulation, counted instructions; also those outside operators, so that all of a run are here.';
COMMENT ON COLUMN kernel_usage.kernel IS 'Name of the function, or its library and offset when it has no exported name.';
COMMENT ON COLUMN kernel_usage.sme_samples IS 'Those on SME, as in judged_samples; NULL on a reference.';
COMMENT ON COLUMN kernel_usage.instructions IS 'Instructions executed in it in one inference; NULL where they are not counted.';
COMMENT ON COLUMN kernel_usage.share_of_operator IS 'Samples or instructions in this function over all of the operator.';
COMMENT ON COLUMN kernel_usage.share_of_run IS 'Samples or instructions in this function over all of the run.';

-- What is not delegated costs its own time and one more border; the delegated ones are one row of a run.
CREATE VIEW delegation_report AS
WITH inside AS (
    SELECT
        run_id,
        sum(per_inference_ns) AS mean_ns,
        sum(share) AS share
    FROM operator_facts
    WHERE backend <> 'portable'
    GROUP BY run_id
),
delegated AS (
    SELECT run_id, sum(count)::INTEGER AS count
    FROM delegation
    WHERE delegated
    GROUP BY run_id
)
SELECT
    delegation.run_id, false AS delegated, delegation.operator, delegation.module, delegation.source,
    delegation.reason, delegation.count,
    sum(facts.per_inference_ns) AS mean_ns,
    sum(facts.share) AS share
FROM delegation
LEFT JOIN operator_facts AS facts
    ON facts.run_id = delegation.run_id AND facts.backend = 'portable'
    AND list_contains(facts.edge_ops, delegation.operator)
    AND facts.module IS NOT DISTINCT FROM delegation.module
    AND facts.source IS NOT DISTINCT FROM delegation.source
WHERE NOT delegation.delegated
GROUP BY
    delegation.run_id, delegation.operator, delegation.module, delegation.source, delegation.reason, delegation.count
UNION ALL
SELECT
    delegated.run_id, true, NULL, NULL, NULL, NULL, delegated.count, inside.mean_ns, inside.share
FROM delegated
LEFT JOIN inside ON inside.run_id = delegated.run_id;
COMMENT ON VIEW delegation_report IS 'Operators outside delegates, with the reason and what they cost; the delegated ones together in one row.';
COMMENT ON COLUMN delegation_report.mean_ns IS 'Mean time per inference; NULL when emulated or when no row of the run could be found for it.';
COMMENT ON COLUMN delegation_report.share IS 'Mean time over mean Method::execute; NULL when emulated.';
COMMENT ON COLUMN delegation_report.count IS 'Operators of the exported program; XNNPACK fuses some of them.';

CREATE VIEW attribution_coverage AS
WITH placed AS (
    SELECT
        run_id, per_inference_ns,
        coalesce(module, source) IS NOT NULL AS has_place,
        attribution = 'inserted' OR (attribution IN ('exact', 'aligned') AND coalesce(module, source) IS NOT NULL)
            AS is_attributed
    FROM operator_details
),
counted AS (
    SELECT
        run_id,
        count(*)::INTEGER AS operators,
        CASE WHEN bool_or(has_place) THEN count(*) FILTER (is_attributed) END::INTEGER AS attributed_operators,
        CASE WHEN bool_or(has_place) THEN count(*) FILTER (is_attributed) / count(*) END AS row_coverage,
        CASE
            WHEN bool_or(has_place)
                THEN coalesce(sum(per_inference_ns) FILTER (is_attributed), 0) / nullif(sum(per_inference_ns), 0)
        END AS time_coverage
    FROM placed
    GROUP BY run_id
)
SELECT
    run.*,
    counted.* EXCLUDE (run_id)
FROM counted
JOIN run_series AS run USING (run_id);
COMMENT ON VIEW attribution_coverage IS 'How much of each run is attributed to the model: operators, and their time.';
COMMENT ON COLUMN attribution_coverage.operators IS 'Operators of the run.';
COMMENT ON COLUMN attribution_coverage.attributed_operators IS 'Those with one place in the model, or inserted by the delegate; NULL for a program that came without its model.';
COMMENT ON COLUMN attribution_coverage.row_coverage IS 'Attributed over all operators; NULL where that is not known.';
COMMENT ON COLUMN attribution_coverage.time_coverage IS 'The same by time; NULL when emulated, too.';

CREATE VIEW category_summary AS
WITH placed AS NOT MATERIALIZED (
    SELECT
        run_id, category,
        count(*) FILTER (on_sme_unit = 'on')::INTEGER AS sme2_operators,
        count(*) FILTER (on_sme_unit = 'unknown')::INTEGER AS sme2_unknown_operators
    FROM operator_details
    GROUP BY run_id, category
)
SELECT
    run.*,
    times.category, times.operators, times.unknown_operators, times.rounds, times.median_ns, times.mean_ns, times.share,
    times.events, times.total_ns, times.instructions, times.instructions_share,
    CASE WHEN fidelity IS DISTINCT FROM 'reference' THEN coalesce(placed.sme2_operators, 0) END AS sme2_operators,
    CASE WHEN fidelity IS DISTINCT FROM 'reference' THEN coalesce(placed.sme2_unknown_operators, 0) END
        AS sme2_unknown_operators
FROM category_times AS times
JOIN run_series AS run USING (run_id)
LEFT JOIN placed ON placed.run_id = times.run_id AND placed.category = times.category;
COMMENT ON VIEW category_summary IS 'Time of each operator category of each run, and of the overhead; when emulated, their counted instructions, which are work and not time.';
COMMENT ON COLUMN category_summary.category IS 'CONV, GEMM, Data Movement, Elementwise, Other; Overhead is delegate and framework overhead.';
COMMENT ON COLUMN category_summary.operators IS 'Operators of the category in one inference.';
COMMENT ON COLUMN category_summary.sme2_operators IS 'Convolutions and matrix products on the SME unit, as in operator_facts; NULL on a reference, which says nothing about SME2.';
COMMENT ON COLUMN category_summary.sme2_unknown_operators IS 'Those for which that is unknown; NULL on a reference.';
COMMENT ON COLUMN category_summary.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN category_summary.median_ns IS 'Median over rounds of the per-process medians.';
COMMENT ON COLUMN category_summary.mean_ns IS 'Mean time per inference without disturbed rounds; the rows of a run add up to the inference.';
COMMENT ON COLUMN category_summary.share IS 'Mean time over the sum of the run''s rows.';
COMMENT ON COLUMN category_summary.events IS 'Rows of timeline in all timed inferences.';
COMMENT ON COLUMN category_summary.total_ns IS 'Their time; NULL when emulated.';
COMMENT ON COLUMN category_summary.instructions IS 'Instructions executed in one inference, as in operator_facts; of Overhead, those of the delegate calls and the framework around operators.';
COMMENT ON COLUMN category_summary.instructions_share IS 'Instructions over the sum of the run''s rows.';

CREATE VIEW unit_use AS
WITH counted AS (
    SELECT
        run_id,
        count(*)::INTEGER AS matrix_operators,
        count(*) FILTER (on_sme_unit = 'on')::INTEGER AS on_unit,
        count(*) FILTER (on_sme_unit = 'off')::INTEGER AS off_unit,
        count(*) FILTER (on_sme_unit = 'unknown')::INTEGER AS unknown,
        count(*) FILTER (on_sme_unit = 'on' AND NOT executed)::INTEGER AS by_name_alone,
        count(*) FILTER (macs IS NULL)::INTEGER AS uncounted,
        sum(macs)::BIGINT AS macs,
        coalesce(sum(macs) FILTER (on_sme_unit = 'on'), 0) / nullif(sum(macs), 0) AS macs_on_unit,
        coalesce(sum(macs) FILTER (on_sme_unit <> 'off'), 0) / nullif(sum(macs), 0) AS macs_on_unit_at_most
    FROM operator_details
    WHERE on_sme_unit IS NOT NULL
    GROUP BY run_id
)
SELECT
    run.*,
    counted.* EXCLUDE (run_id)
FROM counted
JOIN run_series AS run USING (run_id);
COMMENT ON VIEW unit_use IS 'How much of each run is on the SME unit: the one count of it. A run without convolutions and matrix products has no row, nor has a reference.';
COMMENT ON COLUMN unit_use.matrix_operators IS 'Convolutions and matrix products, of all operator sequences that inferences took.';
COMMENT ON COLUMN unit_use.on_unit IS 'Those on the SME unit, as in operator_facts.';
COMMENT ON COLUMN unit_use.off_unit IS 'Those that are not.';
COMMENT ON COLUMN unit_use.unknown IS 'Those of which nothing tells.';
COMMENT ON COLUMN unit_use.by_name_alone IS 'Those on the unit that too few samples show there; their names say it.';
COMMENT ON COLUMN unit_use.uncounted IS 'Those whose multiply-accumulates are not counted.';
COMMENT ON COLUMN unit_use.macs IS 'Multiply-accumulates of those that are counted.';
COMMENT ON COLUMN unit_use.macs_on_unit IS 'Share of these on the SME unit.';
COMMENT ON COLUMN unit_use.macs_on_unit_at_most IS 'The same if all that is unknown is on it, too.';

-- Sessions are ranked by one narrow row each: all their rows are wide, and many.
CREATE VIEW sme2_comparison AS
WITH newest AS (
    SELECT variant, platform, session_id
    FROM (SELECT DISTINCT
            variant, platform, session_id, device, arch, threads, cpus, power_mode,
            coalesce(method, 'forward') AS method, b_run_id
        FROM comparisons
        WHERE factor = 'sme2')
    LEFT JOIN (SELECT run_id AS b_run_id, sequence FROM runs) USING (b_run_id)
    QUALIFY rank() OVER (
        PARTITION BY variant, platform, device, arch, threads, cpus, power_mode, method
        ORDER BY coalesce(sequence, 0) DESC, session_id DESC
    ) = 1
)
SELECT
    variant, platform, session_id, a_run_id AS off_run_id, b_run_id AS on_run_id,
    model, precision, device, arch, threads, cpus, power_mode, method, fidelity,
    level, category, backend, delegate, position, b_position AS on_position, op_type,
    a_name AS off_name, b_name AS on_name, operators, matrix_operators,
    sme2_operators_a AS sme2_operators_off, sme2_operators_b AS sme2_operators_on, sme2_operators_unknown,
    a_ns AS off_ns, b_ns AS on_ns, speedup, speedup_low, speedup_high, bound_low, bound_high, n, p_value, p_adjusted,
    minimal_detectable_effect, slow_rounds_a AS slow_rounds_off, slow_rounds_b AS slow_rounds_on,
    noise_floor, aa_noise_floor,
    placebo, placebo_operators, placebo_ratio, placebo_low, placebo_high, placebo_scatter,
    confidence, confidence_reason, verdict, reason
FROM comparisons
SEMI JOIN newest USING (variant, platform, session_id);
COMMENT ON VIEW sme2_comparison IS 'SME2 on against off, and no other factor: the newest comparison of every variant, platform, device, architecture, thread count, choice of CPUs, power mode and method; columns as in comparisons, with off and on for a and b.';
COMMENT ON COLUMN sme2_comparison.off_run_id IS 'The run with SME2 off.';
COMMENT ON COLUMN sme2_comparison.on_run_id IS 'The run with SME2 on.';
COMMENT ON COLUMN sme2_comparison.position IS 'Position of the operator with SME2 off, or with SME2 on if it is only in that arm.';
COMMENT ON COLUMN sme2_comparison.on_position IS 'Its position with SME2 on: different if an arm has more operators. NULL where it has none.';
COMMENT ON COLUMN sme2_comparison.off_name IS 'Name of the operator with SME2 off.';
COMMENT ON COLUMN sme2_comparison.on_name IS 'Name of the operator with SME2 on; another kernel often has another name.';
COMMENT ON COLUMN sme2_comparison.operators IS 'Operators of the row with SME2 on; 0 if only the arm with SME2 off has it.';
COMMENT ON COLUMN sme2_comparison.matrix_operators IS 'Convolutions and matrix products with SME2 on.';
COMMENT ON COLUMN sme2_comparison.sme2_operators_off IS 'Those on the SME unit with SME2 off, which must be 0. NULL on a reference, which says nothing about SME2.';
COMMENT ON COLUMN sme2_comparison.sme2_operators_on IS 'The same with SME2 on, as in operator_facts.';
COMMENT ON COLUMN sme2_comparison.sme2_operators_unknown IS 'Those for which it is unknown with SME2 on; NULL on a reference.';
COMMENT ON COLUMN sme2_comparison.off_ns IS 'Time with SME2 off: median over rounds of per-process medians. NULL when emulated.';
COMMENT ON COLUMN sme2_comparison.on_ns IS 'The same with SME2 on. NULL when emulated.';
COMMENT ON COLUMN sme2_comparison.speedup IS 'off / on over paired rounds; above 1 SME2 is faster. NULL when not comparable, and where XNNPACK''s whole microseconds leave it open by a factor of more than 1.25.';
COMMENT ON COLUMN sme2_comparison.slow_rounds_off IS 'Rounds with SME2 off that form a slow mode of their own.';
COMMENT ON COLUMN sme2_comparison.slow_rounds_on IS 'The same with SME2 on.';
COMMENT ON COLUMN sme2_comparison.placebo_ratio IS 'off / on of their total time, which is 1 except for bias and noise.';

-- Operators are paired as in comparisons; their sums come from the same rows. An arm that lacks an operator has no
-- work of it.
CREATE VIEW work_comparison AS
WITH pairs AS (
    SELECT
        compared.*, coalesce(b_work.module, a_work.module) AS module, coalesce(b_work.macs, a_work.macs) AS macs,
        a_work.instructions AS a_instructions, a_work.macs_executed AS a_macs_executed,
        a_work.macs_on_unit AS a_macs_on_unit, a_work.outer_products AS a_outer_products,
        a_work.streaming_entries AS a_streaming_entries,
        a_work.packing_instructions AS a_packing_instructions, b_work.instructions AS b_instructions,
        b_work.macs_executed AS b_macs_executed, b_work.macs_on_unit AS b_macs_on_unit,
        b_work.outer_products AS b_outer_products, b_work.streaming_entries AS b_streaming_entries,
        b_work.packing_instructions AS b_packing_instructions
    FROM comparisons AS compared
    LEFT JOIN operator_details AS a_work
        ON a_work.run_id = compared.a_run_id AND compared.a_name IS NOT NULL
        AND a_work.backend = compared.backend AND a_work.delegate IS NOT DISTINCT FROM compared.delegate
        AND a_work.position = compared.position
    LEFT JOIN operator_details AS b_work
        ON b_work.run_id = compared.b_run_id
        AND b_work.backend = compared.backend AND b_work.delegate IS NOT DISTINCT FROM compared.delegate
        AND b_work.position = compared.b_position
    WHERE compared.level = 'operator' AND coalesce(a_work.instructions, b_work.instructions) IS NOT NULL
)
SELECT
    variant, platform, session_id, factor, a_value, b_value, device, arch, threads, cpus, power_mode, method,
    a_run_id, b_run_id,
    CASE
        WHEN grouping(position) = 0 THEN 'operator'
        WHEN grouping(module) = 0 THEN 'module'
        WHEN grouping(category) = 0 THEN 'category'
        ELSE 'model'
    END AS level,
    category, module, backend, delegate, position, b_position, a_name, b_name,
    count(*)::INTEGER AS operators,
    sum(macs)::BIGINT AS macs,
    sum(a_instructions)::BIGINT AS a_instructions, sum(a_macs_executed)::BIGINT AS a_macs_executed,
    sum(a_macs_on_unit)::BIGINT AS a_macs_on_unit, sum(a_outer_products)::BIGINT AS a_outer_products,
    sum(a_streaming_entries)::BIGINT AS a_streaming_entries,
    sum(a_packing_instructions)::BIGINT AS a_packing_instructions,
    sum(b_instructions)::BIGINT AS b_instructions, sum(b_macs_executed)::BIGINT AS b_macs_executed,
    sum(b_macs_on_unit)::BIGINT AS b_macs_on_unit, sum(b_outer_products)::BIGINT AS b_outer_products,
    sum(b_streaming_entries)::BIGINT AS b_streaming_entries,
    sum(b_packing_instructions)::BIGINT AS b_packing_instructions
FROM pairs
GROUP BY
    variant, platform, session_id, factor, a_value, b_value, device, arch, threads, cpus, power_mode, method,
    a_run_id, b_run_id,
    GROUPING SETS (
        (), (category), (module),
        (category, module, backend, delegate, position, b_position, a_name, b_name)
    );
COMMENT ON VIEW work_comparison IS 'What the arms of each emulated session executed, side by side: the operators that comparisons pairs, and their totals by category, module and model. It is work, and never time. What delegates and the framework execute around operators is in operator_work.';
COMMENT ON COLUMN work_comparison.level IS 'model, category, module or operator.';
COMMENT ON COLUMN work_comparison.category IS 'Category of the row; NULL for a module and the model.';
COMMENT ON COLUMN work_comparison.module IS 'Module that the operators belong to, without those below it; NULL for a category, the model, and operators without a place.';
COMMENT ON COLUMN work_comparison.operators IS 'Operators of the row, in either arm.';
COMMENT ON COLUMN work_comparison.macs IS 'Multiply-accumulates of the model, where they are counted; those executed are more, because tiles and vectors are filled up.';
COMMENT ON COLUMN work_comparison.a_instructions IS 'Instructions of one inference, of the first arm, as in operator_details. NULL where it lacks the operator.';
COMMENT ON COLUMN work_comparison.a_macs_executed IS 'Multiply-accumulates that these are.';
COMMENT ON COLUMN work_comparison.a_macs_on_unit IS 'Those of them on the SME unit.';
COMMENT ON COLUMN work_comparison.a_outer_products IS 'Outer products among the instructions.';
COMMENT ON COLUMN work_comparison.a_streaming_entries IS 'How often streaming mode was entered.';
COMMENT ON COLUMN work_comparison.a_packing_instructions IS 'Instructions in functions that pack, by their names.';
COMMENT ON COLUMN work_comparison.b_instructions IS 'Instructions of one inference, of the second arm.';
COMMENT ON COLUMN work_comparison.b_macs_executed IS 'Multiply-accumulates that these are.';
COMMENT ON COLUMN work_comparison.b_macs_on_unit IS 'Those of them on the SME unit.';
COMMENT ON COLUMN work_comparison.b_outer_products IS 'Outer products among the instructions.';
COMMENT ON COLUMN work_comparison.b_streaming_entries IS 'How often streaming mode was entered.';
COMMENT ON COLUMN work_comparison.b_packing_instructions IS 'Instructions in functions that pack, by their names.';

CREATE VIEW aa_sessions AS
SELECT
    platform, device, arch, threads, coalesce(cpus, '') AS cpus, coalesce(power_mode, '') AS power_mode,
    coalesce(method, 'forward') AS method,
    variant, session_id, coalesce(numbered.sequence, 0) AS sequence, speedup, speedup_low, speedup_high, n, verdict,
    exp(abs(ln(speedup))) AS deviation
FROM comparisons
LEFT JOIN (SELECT run_id, sequence FROM runs) AS numbered ON numbered.run_id = comparisons.b_run_id
WHERE factor IS NULL AND level = 'model' AND speedup IS NOT NULL;
COMMENT ON VIEW aa_sessions IS 'What identical arms gave: every deviation from 1 is noise, every verdict of faster or slower an error.';
COMMENT ON COLUMN aa_sessions.deviation IS 'The speedup or its reciprocal, whichever is above 1.';

CREATE VIEW blind_rates AS
SELECT
    platform, device, arch, fidelity, threads, cpus, power_mode, dose_percent,
    count(*) AS trials,
    count(*) FILTER (verdict = 'slower') AS slower,
    count(*) FILTER (verdict IN ('slower', 'faster')) AS different,
    median(ratio) AS median_ratio
FROM blind_trials
GROUP BY ALL
ORDER BY ALL;
COMMENT ON VIEW blind_rates IS 'How often a hidden slow-down of each size was found on a device: its power. With a dose of 0, how often identical arms were called different: its false alarms.';
COMMENT ON COLUMN blind_rates.trials IS 'Blind trials of this dose.';
COMMENT ON COLUMN blind_rates.slower IS 'Those whose verdict was that the second arm is slower.';
COMMENT ON COLUMN blind_rates.different IS 'Those whose verdict was any difference; with a dose of 0 each is a false alarm.';
COMMENT ON COLUMN blind_rates.median_ratio IS 'Median of the estimated ratios; a dose of 5 % should give 1.05.';

-- One point per run: what change points are looked for in, and what a plot of the nights shows.
CREATE VIEW history AS
SELECT
    runs.variant, runs.platform, runs.device, coalesce(runs.arch, '') AS arch, runs.threads,
    coalesce(runs.cpus, '') AS cpus, coalesce(runs.power_mode, '') AS power_mode,
    coalesce(runs.method, 'forward') AS method, runs.sme2,
    runs.fidelity, series.category, coalesce(runs.sequence, 0) AS sequence, runs.started_at, runs.run_id, series.median_ns, runs.derivation
FROM (
    SELECT run_id, 'latency' AS category, median_ns FROM latency_summary
    UNION ALL
    SELECT run_id, category, median_ns FROM category_times
) AS series
JOIN runs USING (run_id)
WHERE runs.fidelity <> 'emulated' AND runs.experiment IN ('sme2', 'arms') AND runs.factor IS DISTINCT FROM 'executorch';
COMMENT ON VIEW history IS 'Median times of every run that has any (emulated ones have none: work_history), whatever it was compared with, per category and for the whole inference. A/A sessions and those that compare ExecuTorch versions are left out: all their arms would be one night of one series.';
COMMENT ON COLUMN history.category IS 'Operator category, Overhead, or latency: the whole inference without tracer.';
COMMENT ON COLUMN history.median_ns IS 'Median over rounds of the per-process medians.';

-- Counts hardly scatter, if at all, so a step of this series is a change of what is beside it.
CREATE VIEW work_history AS
WITH counted AS (
    SELECT run_id, sum(instructions)::BIGINT AS instructions
    FROM operator_details
    WHERE instructions IS NOT NULL
    GROUP BY run_id
)
SELECT
    runs.variant, runs.platform, runs.device, coalesce(runs.arch, '') AS arch, runs.threads,
    coalesce(runs.cpus, '') AS cpus, coalesce(runs.power_mode, '') AS power_mode,
    coalesce(runs.method, 'forward') AS method, runs.sme2, runs.fidelity,
    coalesce(runs.sequence, 0) AS sequence, runs.started_at, runs.run_id,
    runs.executorch_version, runs.pte_sha256, runs.runner_sha256, runs.emulator,
    counted.instructions, unit_use.macs_on_unit, runs.derivation
FROM counted
JOIN runs USING (run_id)
LEFT JOIN (SELECT run_id, macs_on_unit FROM unit_use) AS unit_use USING (run_id)
WHERE runs.experiment IN ('sme2', 'arms') AND runs.factor IS DISTINCT FROM 'executorch';
COMMENT ON VIEW work_history IS 'What the operators of each emulated run executed, and with what; which runs, as in history. It is work, and never time.';
COMMENT ON COLUMN work_history.instructions IS 'Instructions that all operators executed in one inference, as in operator_facts.';
COMMENT ON COLUMN work_history.macs_on_unit IS 'Share of the multiply-accumulates on the SME unit, as in unit_use; NULL without any.';
