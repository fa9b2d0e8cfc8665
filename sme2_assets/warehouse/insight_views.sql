-- What can be won, and where: the views behind the insights. Read after views.sql.
-- Emulated rows keep their kernels and their place; their times are NULL from the start. A reference
-- keeps its times; it has no missed SME2 and no ceilings, because it says nothing about SME2.

CREATE VIEW bottlenecks AS
SELECT
    run_id, session_id, variant, model, precision, platform, sme2,
    device, arch, threads, cpus, power_mode, method, fidelity, started_at,
    rank, path, execution_order, backend, delegate, position, name, op_type, data_type, category, known,
    attribution, node_kind, edge_ops, module, module_type, source, code, input_shape, output_shape, macs,
    on_sme_unit, sme2_evidence, samples, telling_samples, certain_sme_samples,
    instructions, instructions_share, macs_executed, macs_on_unit, outer_products, streaming_entries,
    packing_instructions, rounds, inferences, median_ns, mean_ns, mean_most_ns, per_inference_ns, share, cumulative_share, gops, rate_unit
FROM operator_facts;
COMMENT ON VIEW bottlenecks IS 'The operators of each run with their rank by time, or by counted instructions where there are no times, and with their order in the inference.';
COMMENT ON COLUMN bottlenecks.rank IS '1 for the operator that takes the most of an inference; when emulated, for the one that executes the most instructions, and NULL where they are not counted.';
COMMENT ON COLUMN bottlenecks.on_sme_unit IS 'on, off or unknown, as in operator_facts.';
COMMENT ON COLUMN bottlenecks.sme2_evidence IS 'executed, name, registered or none, as in operator_facts.';
COMMENT ON COLUMN bottlenecks.samples IS 'Samples attributed to the operator, all threads.';
COMMENT ON COLUMN bottlenecks.telling_samples IS 'Those in kernels that compute, as in operator_facts.';
COMMENT ON COLUMN bottlenecks.certain_sme_samples IS 'Those of them on SME.';
COMMENT ON COLUMN bottlenecks.instructions IS 'Instructions counted in one inference, as in operator_facts.';
COMMENT ON COLUMN bottlenecks.instructions_share IS 'Instructions over those of the inference, which has the delegates'' and the framework''s, too.';
COMMENT ON COLUMN bottlenecks.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN bottlenecks.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN bottlenecks.median_ns IS 'Median over rounds of the per-process medians; NULL when emulated.';
COMMENT ON COLUMN bottlenecks.mean_ns IS 'Mean over the inferences that ran it, without disturbed rounds; NULL when emulated.';
COMMENT ON COLUMN bottlenecks.mean_most_ns IS 'The most the mean can be, as in operator_summary; NULL when emulated.';
COMMENT ON COLUMN bottlenecks.per_inference_ns IS 'What it takes of an inference, as in operator_facts; NULL when emulated.';
COMMENT ON COLUMN bottlenecks.share IS 'That over mean Method::execute; NULL when emulated.';
COMMENT ON COLUMN bottlenecks.cumulative_share IS 'Share of this operator and all of a smaller rank; NULL when emulated.';
COMMENT ON COLUMN bottlenecks.gops IS 'Achieved 10^9 operations per second, as in operator_facts.';
COMMENT ON COLUMN bottlenecks.rate_unit IS 'GOP/s where the operator multiplies integers, otherwise GFLOP/s; NULL without a rate.';

-- A run without SME2 borrows the evidence of the newest emulated run with SME2 that has the same model
-- file, the same library and the same operators in the same places.
CREATE VIEW emulated_twin AS
WITH candidates AS (
    SELECT runs.*, program, bool_or(sme2 = 'on') OVER (PARTITION BY session_id, variant, platform) AS both_arms
    FROM runs
    JOIN programs USING (run_id)
    WHERE experiment = 'sme2' AND fidelity IS DISTINCT FROM 'reference'
)
SELECT alone.run_id, lender.run_id AS evidence_run_id
FROM candidates AS alone
JOIN candidates AS lender
    ON lender.variant = alone.variant AND lender.pte_sha256 = alone.pte_sha256
    AND lender.executorch_version = alone.executorch_version AND lender.program = alone.program
    AND lender.sme2 = 'on' AND lender.fidelity = 'emulated'
WHERE NOT alone.both_arms
-- Every device known to have SME2 has vectors of 512 bits.
QUALIFY row_number() OVER (
    PARTITION BY alone.run_id
    ORDER BY
        coalesce(lender.sme_vector_bits, 512) = 512 DESC,
        coalesce(lender.sequence, 0) DESC, lender.started_at DESC, lender.run_id DESC
) = 1;
COMMENT ON VIEW emulated_twin IS 'For a run with only SME2 off: the emulated run of the same program with SME2 on, with vectors of 512 bits if there is one, which shows the kernels that SME2 hardware would take.';
COMMENT ON COLUMN emulated_twin.evidence_run_id IS 'The emulated run with SME2 on.';

-- Convolutions and matrix products that are not known to be on the SME unit. Where one is off it, the reason is its
-- obstacle; shape, if another of its kind and data type is on the unit; else nobody knows the cause.
CREATE VIEW missed_sme2 AS
WITH sessions AS (
    SELECT session_id, variant, platform, bool_or(sme2 = 'on') AS both_arms
    FROM runs
    WHERE experiment IN ('sme2', 'arms')
    GROUP BY session_id, variant, platform
),
-- Not materialised, so that a query for one run reads no other.
matrix AS NOT MATERIALIZED (
    SELECT
        facts.*, sessions.both_arms
    FROM operator_facts AS facts
    JOIN runs ON runs.run_id = facts.run_id AND runs.experiment IN ('sme2', 'arms')
    JOIN sessions
        ON sessions.session_id = facts.session_id AND sessions.variant = facts.variant
        AND sessions.platform = facts.platform
    WHERE facts.on_sme_unit IS NOT NULL
),
observed AS NOT MATERIALIZED (
    SELECT
        *,
        CASE
            WHEN on_sme_unit = 'unknown' THEN 'unknown'
            WHEN sme2_obstacle IS NOT NULL THEN sme2_obstacle
            WHEN kind_is_on THEN 'shape'
            ELSE 'unexplained'
        END AS reason
    FROM matrix
    WHERE sme2 = 'on' AND on_sme_unit <> 'on'
),
missed AS NOT MATERIALIZED (
    SELECT *, 'observed' AS basis, run_id AS evidence_run_id FROM observed
    UNION ALL BY NAME
    SELECT
        matrix.* REPLACE (
            observed.on_sme_unit AS on_sme_unit, observed.sme2_evidence AS sme2_evidence,
            observed.telling_samples AS telling_samples, observed.certain_sme_samples AS certain_sme_samples,
            observed.instructions AS instructions, observed.instructions_share AS instructions_share,
            observed.macs_executed AS macs_executed,
            observed.macs_on_unit AS macs_on_unit
        ),
        observed.reason, 'emulated' AS basis, emulated_twin.evidence_run_id
    FROM matrix
    JOIN emulated_twin USING (run_id)
    JOIN observed
        ON observed.run_id = emulated_twin.evidence_run_id AND observed.backend = matrix.backend
        AND observed.delegate IS NOT DISTINCT FROM matrix.delegate AND observed.position = matrix.position
    UNION ALL BY NAME
    SELECT *, sme2_obstacle AS reason, 'predicted' AS basis, NULL AS evidence_run_id
    FROM matrix
    WHERE NOT both_arms AND sme2_obstacle IS NOT NULL AND run_id NOT IN (SELECT run_id FROM emulated_twin)
)
SELECT
    run_id, session_id, variant, model, precision, platform, sme2,
    device, arch, threads, cpus, power_mode, method, fidelity, started_at,
    on_sme_unit, reason,
    CASE reason
        WHEN 'not delegated' THEN 'A portable kernel ran it; only XNNPACK has SME2 kernels.'
        WHEN 'depthwise' THEN 'Each channel has its own filter, so there is no matrix product; this ExecuTorch has no SME2 kernel for it.'
        WHEN 'quantisation scheme' THEN 'XNNPACK has no SME2 kernel for ' || data_type || '.'
        WHEN 'data type' THEN CASE
            WHEN op_type = 'Deconvolution'
                THEN 'XNNPACK has an SME2 deconvolution for int8 only, not for ' || data_type || '.'
            WHEN element = 'F16' AND op_type = 'Fully Connected'
                THEN 'In fp16 XNNPACK has no SME2 kernel for 1x1 convolutions, as it has in fp32 and int8; it reports them as Fully Connected.'
            ELSE 'XNNPACK has no SME2 kernel for ' || data_type || '.'
        END
        WHEN 'shape' THEN CASE
            WHEN node_kind = 'XNNDepthwiseConv2d'
                THEN 'It has one input channel, so it was exported as a depthwise convolution, which has no SME2 kernel; with more input channels it would be an ordinary one.'
            ELSE 'Others of its kind and data type took an SME2 kernel in the same run: it is this operator''s own shape or parameters.'
        END
        WHEN 'unexplained' THEN 'It ran in other kernels; nothing that is stored tells why.'
        ELSE CASE
            WHEN sme2_evidence = 'name' THEN 'Its name says SME2, its samples say other kernels.'
            WHEN certain_sme_samples > 0 AND sme2_obstacle IS NOT NULL
                THEN 'It was sampled in SME kernels, though by its type there should be none for it.'
            WHEN certain_sme_samples > 0 THEN 'It was sampled in SME kernels, but too few times, or in others as well.'
            WHEN element = 'QP8'
                THEN 'QP8 has kernels with and without SME2, and too few samples tell which one ran.'
            ELSE 'Neither its name nor enough samples tell which kernel ran.'
        END
    END AS because,
    basis, evidence_run_id, sme2_evidence,
    backend, delegate, position, name, op_type, data_type, category,
    attribution, node_kind, module, module_type, source, code, input_shape, output_shape, kernel_size, groups, macs,
    samples, telling_samples, certain_sme_samples, instructions, instructions_share, macs_executed, macs_on_unit,
    rounds, inferences,
    CASE WHEN fidelity = 'hardware' THEN median_ns END AS median_ns,
    CASE WHEN fidelity = 'hardware' THEN mean_ns END AS mean_ns,
    CASE WHEN fidelity = 'hardware' THEN per_inference_ns END AS per_inference_ns,
    CASE WHEN fidelity = 'hardware' THEN share END AS share
FROM missed;
COMMENT ON VIEW missed_sme2 IS 'Convolutions and matrix products that are off the SME unit, with the reason, and those for which that is unknown. For a session with both arms, those of the arm with SME2 on; for SME2 off alone, what to expect; for a reference, none.';
COMMENT ON COLUMN missed_sme2.on_sme_unit IS 'off or unknown, in the run with SME2 on that shows it; in this one when predicted.';
COMMENT ON COLUMN missed_sme2.reason IS 'Of one that is off the unit: depthwise, data type, shape, not delegated, quantisation scheme or unexplained. unknown: whether it is off is not known.';
COMMENT ON COLUMN missed_sme2.because IS 'The reason in a sentence.';
COMMENT ON COLUMN missed_sme2.basis IS 'observed (this run had SME2 on), emulated (it had not; an emulated run of the same model file shows it), or predicted (from the operator''s type alone).';
COMMENT ON COLUMN missed_sme2.evidence_run_id IS 'The run with SME2 on that shows it; NULL when predicted.';
COMMENT ON COLUMN missed_sme2.sme2_evidence IS 'none; registered: the log offered an SME2 kernel, but nothing shows that it ran; name: its name implies one, and its samples do not.';
COMMENT ON COLUMN missed_sme2.samples IS 'Samples attributed to the operator, all threads.';
COMMENT ON COLUMN missed_sme2.telling_samples IS 'Those in kernels that compute, on SME or not, of the run that shows it.';
COMMENT ON COLUMN missed_sme2.certain_sme_samples IS 'Those of them on SME.';
COMMENT ON COLUMN missed_sme2.instructions_share IS 'Instructions over those of the inference, as in bottlenecks.';
COMMENT ON COLUMN missed_sme2.rounds IS 'Rounds: the n of the median.';
COMMENT ON COLUMN missed_sme2.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN missed_sme2.median_ns IS 'Median over rounds of the per-process medians; NULL when emulated.';
COMMENT ON COLUMN missed_sme2.mean_ns IS 'Mean over the inferences that ran it, as reported; NULL when emulated.';
COMMENT ON COLUMN missed_sme2.per_inference_ns IS 'What it takes of an inference, as reported: the most that an SME2 kernel could gain, except for up to a microsecond that XNNPACK hides. NULL when emulated.';
COMMENT ON COLUMN missed_sme2.share IS 'That over mean Method::execute; NULL when emulated.';

CREATE VIEW module_summary AS
SELECT
    run.*,
    modules.depth, modules.module, modules.parent, modules.module_type,
    modules.operators, modules.own_operators, modules.matrix_operators,
    CASE WHEN run.fidelity IS DISTINCT FROM 'reference' THEN modules.sme2_operators END AS sme2_operators,
    CASE WHEN run.fidelity IS DISTINCT FROM 'reference' THEN modules.sme2_unknown_operators END
        AS sme2_unknown_operators,
    modules.first_operator, modules.macs, modules.instructions, modules.instructions_share, modules.mean_ns, modules.own_ns, modules.share, modules.gops, modules.rate_unit
FROM module_times AS modules
JOIN run_series AS run USING (run_id);
COMMENT ON VIEW module_summary IS 'Time by module of the model, at every level of its hierarchy; when emulated, counted instructions. The rows of one depth add up to their parents'' own time and theirs; the own times of all rows add up to the inference.';
COMMENT ON COLUMN module_summary.depth IS 'Level: 0 is the whole inference, 1 its parts.';
COMMENT ON COLUMN module_summary.module IS 'Path of the module; (top level) for the model''s own forward, (unattributed) for operators without a place in the model, such as inserted transposes, (overhead) for what is no operator. Empty at depth 0.';
COMMENT ON COLUMN module_summary.parent IS 'The module one level up; NULL at depth 0.';
COMMENT ON COLUMN module_summary.module_type IS 'Class of the module; NULL if it has no operators itself.';
COMMENT ON COLUMN module_summary.operators IS 'Operators in the module and below it.';
COMMENT ON COLUMN module_summary.own_operators IS 'Operators of the module itself.';
COMMENT ON COLUMN module_summary.matrix_operators IS 'CONV and GEMM operators in the module and below it.';
COMMENT ON COLUMN module_summary.sme2_operators IS 'Those of them on the SME unit, as in operator_facts; NULL on a reference.';
COMMENT ON COLUMN module_summary.sme2_unknown_operators IS 'Those for which that is unknown; NULL on a reference.';
COMMENT ON COLUMN module_summary.first_operator IS 'Execution order of its first operator, as in bottlenecks; NULL without operators.';
COMMENT ON COLUMN module_summary.macs IS 'Multiply-accumulates of one inference, where they are counted.';
COMMENT ON COLUMN module_summary.instructions IS 'Instructions of the module and all below it in one inference, as in operator_facts.';
COMMENT ON COLUMN module_summary.instructions_share IS 'Instructions over those of the inference.';
COMMENT ON COLUMN module_summary.mean_ns IS 'Mean time of the module and all below it; NULL when emulated.';
COMMENT ON COLUMN module_summary.own_ns IS 'Mean time of the module''s own operators; NULL when emulated.';
COMMENT ON COLUMN module_summary.share IS 'Mean time over mean Method::execute; NULL when emulated.';
COMMENT ON COLUMN module_summary.gops IS '10^9 operations per second, two per multiply-accumulate, over all time of the module; NULL when emulated, or too short for XNNPACK''s whole microseconds.';
COMMENT ON COLUMN module_summary.rate_unit IS 'GOP/s where any of it multiplies integers, otherwise GFLOP/s; NULL without a rate.';

CREATE VIEW headroom AS
WITH per_run AS (
    SELECT
        run_id, count(*)::INTEGER AS rounds, sum(inferences)::INTEGER AS inferences,
        count(*) FILTER (disturbed)::INTEGER AS disturbed_rounds,
        stddev_samp(inference_ns) / nullif(avg(inference_ns), 0) AS round_cv,
        avg(COLUMNS('_ns$')) FILTER (NOT disturbed),
        max(delegate_calls)::INTEGER AS delegate_calls, max(operators)::INTEGER AS operators,
        max(portable_operators)::INTEGER AS portable_operators
    FROM part_rounds
    GROUP BY run_id
),
operators_of_run AS (
    SELECT
        run_id,
        coalesce(sum(per_inference_ns) FILTER (NOT known), 0) AS unknown_ns,
        1000 * count(*) FILTER (backend = 'xnnpack') AS floored_ns
    FROM operator_details
    GROUP BY run_id
)
SELECT
    run.*,
    per_run.rounds, disturbed_rounds, round_cv,
    per_run.inferences, per_run.operators, portable_operators, delegate_calls,
    1 - (unknown_ns + greatest(delegate_overhead_ns - floored_ns, 0)) / nullif(inference_ns, 0) AS known_share,
    inference_ns, compute_ns, compute_most_ns, data_movement_ns, data_movement_most_ns, portable_ns,
    delegate_overhead_ns, framework_overhead_ns,
    -- A ceiling holds whatever XNNPACK's whole microseconds hide. Where that may be half of what would be left, or
    -- a fifth of the inference is in nothing that is known, there is none.
    CASE WHEN run.fidelity = 'hardware' AND known_share >= 0.8 AND inference_ns > compute_most_ns
        AND 2 * (inference_ns - compute_most_ns) >= inference_ns - compute_ns THEN inference_ns - compute_most_ns
    END AS without_compute_ns,
    inference_ns / without_compute_ns AS without_compute_speedup,
    CASE WHEN run.fidelity = 'hardware' AND known_share >= 0.8 AND inference_ns > data_movement_most_ns
        AND 2 * (inference_ns - data_movement_most_ns) >= inference_ns - data_movement_ns
        THEN inference_ns - data_movement_most_ns
    END AS without_data_movement_ns,
    inference_ns / without_data_movement_ns AS without_data_movement_speedup
FROM per_run
JOIN operators_of_run USING (run_id)
JOIN run_series AS run USING (run_id);
COMMENT ON VIEW headroom IS 'The most each run could gain: the time of its parts, and the ceilings by Amdahl''s law if a part took no time. Traced times; NULL when emulated. A reference has no ceilings.';
COMMENT ON COLUMN headroom.rounds IS 'Rounds; disturbed ones are not in the means.';
COMMENT ON COLUMN headroom.disturbed_rounds IS 'Rounds that the means leave out, as in traced_rounds.';
COMMENT ON COLUMN headroom.round_cv IS 'Standard deviation of the mean inference of the rounds over its mean, disturbed ones included; NULL with one round, and when emulated.';
COMMENT ON COLUMN headroom.inferences IS 'Timed inferences of all rounds.';
COMMENT ON COLUMN headroom.operators IS 'Operators of one inference.';
COMMENT ON COLUMN headroom.delegate_calls IS 'Delegate calls of one inference.';
COMMENT ON COLUMN headroom.known_share IS 'Share of the inference in what is known: not in operators that nobody knows, nor in delegate calls beyond their operators, as far as that is no rounding. NULL when emulated.';
COMMENT ON COLUMN headroom.inference_ns IS 'Mean Method::execute with tracer.';
COMMENT ON COLUMN headroom.compute_ns IS 'Mean time of CONV and GEMM.';
COMMENT ON COLUMN headroom.compute_most_ns IS 'The most that can be: XNNPACK hides up to a microsecond of each operator.';
COMMENT ON COLUMN headroom.data_movement_ns IS 'Mean time of Data Movement.';
COMMENT ON COLUMN headroom.data_movement_most_ns IS 'The most that can be.';
COMMENT ON COLUMN headroom.portable_ns IS 'Mean time of operators outside delegates, whatever their category.';
COMMENT ON COLUMN headroom.delegate_overhead_ns IS 'Mean time of delegate calls beyond their operators. XNNPACK reports whole microseconds, so up to one per operator is rounding.';
COMMENT ON COLUMN headroom.framework_overhead_ns IS 'Mean time of Method::execute beyond delegate calls and portable operators.';
COMMENT ON COLUMN headroom.without_compute_ns IS 'The inference if CONV and GEMM took no time: at least this long. NULL where whole microseconds may hide half of that, or known_share is below 0.8.';
COMMENT ON COLUMN headroom.without_compute_speedup IS 'What that would bring at most: the ceiling of every faster kernel for them. NULL where no bound is known.';
COMMENT ON COLUMN headroom.without_data_movement_ns IS 'The inference if Data Movement took no time: at least this long. NULL as above.';
COMMENT ON COLUMN headroom.without_data_movement_speedup IS 'What that would bring at most; NULL where no bound is known.';
