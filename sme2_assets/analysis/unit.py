"""Does an operator run on the SME unit? The one definition: on, off, or unknown.

The rule is SQL, because everything that is shown reads it from the warehouse: the column `on_sme_unit` of the
view operator_facts, counted in the view unit_use. Publishing puts the expressions into the views by name; a
session uses the same ones to decide whether it has to sample for longer. Nothing else decides about the unit.

Where instructions were counted, those decide that multiply on the unit. Elsewhere samples do, where there are
enough of them. Only samples in a kernel that computes count: waiting threads,
packing and the library's own bookkeeping say nothing. Without them the name decides, if it says anything (QP8
names kernels with and without SME2), or the fact that no kernel of the library fits. The rest is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    import pandas as pd

ON, OFF, UNKNOWN = "on", "off", "unknown"

# For an operator on the unit nearly all telling samples are in SME kernels. But now and then a sample's clock
# is read late, and a single sample of one operator is found in the next (45 times in 28 emulated runs of
# toy_cnn): so few prove nothing, neither for an operator nor against what all its other samples show.
FEWEST_SME_SAMPLES = 5
LEAST_SME_SHARE = 0.5
LATE_SHARE = 0.05
# Where at least half of the time is on SME, the chance of at most one in twenty samples there is 1 in 50,000.
ENOUGH_SAMPLES = 20

# For a row of kernel_samples. A function that only answers questions (role query) carries the name of an
# instruction set but does not use it. Most NEON microkernels of a stripped library have no name: the
# instruction shows that they compute.
IS_SME = "coalesce((isa IN ('sme', 'sme2') AND role IN ('compute', 'pack')) OR unit = 'SME', false)"
IS_TELLING = (
    f"({IS_SME} OR coalesce(role = 'compute', false) OR (symbol IS NULL AND unit IN ('SIMD/FP', 'SVE')))"
)

# Classes of instructions, of operator_work: where they are multiplied decides the unit.
CLASSES_ON_UNIT = ("outer product", "multiply to ZA")
IS_ON_UNIT = f"class IN {CLASSES_ON_UNIT}"
# Threads spin while they wait for one another, and sleep in a call of the system: all of an operator that
# differs from run to run. The thread pool of ExecuTorch's wheel is a library of its own.
IS_WAITING = "coalesce(library LIKE 'libexecutorch_threadpool%' OR symbol = 'syscall', false)"

# For an operator: `named` is whether its name implies an SME2 kernel; telling_samples and certain_sme_samples
# leave out samples at the border to another operator.
EXECUTED = (
    "(coalesce(macs_on_unit, 0) > 0 OR (named AND certain_sme_samples > 0) OR "
    f"(certain_sme_samples >= {FEWEST_SME_SAMPLES} "
    f"AND certain_sme_samples >= {LEAST_SME_SHARE} * telling_samples))"
)
_HARDLY_SME = f"certain_sme_samples <= {LATE_SHARE} * telling_samples"
_ELSEWHERE = f"(telling_samples >= {ENOUGH_SAMPLES} AND {_HARDLY_SME})"
# `no_kernel` is whether no SME2 kernel of the library fits, or operators of its kind that have one are named
# differently.
UNIT_STATE = f"""CASE
        WHEN fidelity = 'reference' OR category NOT IN ('CONV', 'GEMM') THEN NULL
        WHEN macs_on_unit IS NOT NULL THEN CASE WHEN macs_on_unit > 0 THEN '{ON}' ELSE '{OFF}' END
        WHEN {EXECUTED} THEN '{ON}'
        WHEN named THEN CASE WHEN {_ELSEWHERE} THEN '{UNKNOWN}' ELSE '{ON}' END
        WHEN {_ELSEWHERE} OR ((sme2 = 'off' OR no_kernel) AND {_HARDLY_SME}) THEN '{OFF}'
        ELSE '{UNKNOWN}'
    END"""


def filled_in(sql: str) -> str:
    """SQL with this module's expressions in place of their names."""
    for name in ("IS_SME", "IS_TELLING", "IS_ON_UNIT", "IS_WAITING", "EXECUTED", "UNIT_STATE"):
        sql = sql.replace(f"{{{{{name}}}}}", globals()[name])
    return sql


def unsettled(operators: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """The convolutions and matrix products of a process with SME2 on whose unit is unknown so far.

    `operators` are rows of `timeline_rows`, `samples` of `kernel_sample_rows`. Returns their names and how
    many telling samples each has.
    """
    with duckdb.connect() as connection:
        connection.register("operators", operators)
        connection.register("samples", samples)
        return connection.execute(
            filled_in(
                """
                WITH distinct_operators AS (
                    SELECT DISTINCT
                        backend::VARCHAR AS backend, delegate, position, name::VARCHAR AS name,
                        category::VARCHAR AS category, sme2_evidence::VARCHAR = 'name' AS named
                    FROM operators WHERE kind = 'operator'
                ),
                counted AS (
                    SELECT
                        backend::VARCHAR AS backend, delegate, position,
                        sum(samples - near_boundary_samples) FILTER ({{IS_TELLING}}) AS telling,
                        sum(samples - near_boundary_samples) FILTER ({{IS_SME}}) AS sme
                    FROM samples WHERE kind = 'operator' GROUP BY ALL
                ),
                known AS (
                    SELECT
                        name, category, named, 'on' AS sme2, '' AS fidelity,
                        placed.backend = 'portable' OR contains(name, 'DWConv') AS no_kernel,
                        coalesce(telling, 0) AS telling_samples, coalesce(sme, 0) AS certain_sme_samples,
                        NULL AS macs_on_unit
                    FROM distinct_operators AS placed
                    LEFT JOIN counted
                        ON counted.backend = placed.backend AND counted.position = placed.position
                        AND counted.delegate IS NOT DISTINCT FROM placed.delegate
                )
                SELECT name, telling_samples::BIGINT AS telling_samples FROM known
                WHERE {{UNIT_STATE}} = 'unknown' ORDER BY name
                """
            )
        ).df()
