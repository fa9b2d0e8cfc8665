"""How much of a model is on the SME unit: in a few words, and by precision in a table and a sentence.

Belongs here: the words for the counts of the view `unit_use`, which are the only counts there are, and what
the precisions of one model show together. Why an operator is off the unit is not judged here: the view
`missed_sme2` says why. What the evidence does not show stays unknown, and no sentence is built on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.percent import percent_range_text
from sme2_assets.analysis.unit import ON, UNKNOWN
from sme2_assets.report import claims
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse

_COUNTS = """
FROM unit_use WHERE sme2 = 'on' AND list_contains($run_ids, run_id) ORDER BY list_position($run_ids, run_id)
"""
_OPERATORS = """
SELECT
    facts.op_type, facts.node_kind, facts.kernel_size, facts.groups, facts.on_sme_unit,
    missed.reason, missed.because
FROM operator_facts AS facts
LEFT JOIN missed_sme2 AS missed
    ON missed.run_id = facts.run_id AND missed.backend = facts.backend
    AND missed.delegate IS NOT DISTINCT FROM facts.delegate AND missed.position = facts.position
WHERE facts.run_id = ? AND facts.on_sme_unit IS NOT NULL
ORDER BY facts.delegate NULLS LAST, facts.position
"""
_NOT_KNOWN = """
SELECT run_id, count(*) AS operators
FROM operator_facts
WHERE list_contains(?, run_id) AND NOT known
GROUP BY run_id
"""

Record = Mapping[Hashable, Any]
_IDENTITY = ("run_id", "variant", "model", "precision", "platform", "fidelity")


@dataclass(frozen=True)
class MatrixOperator:
    """A convolution or matrix product of a run with SME2 on.

    `kind` is what a person calls it, e.g. `1x1 convolution`. `unit` is on, off or unknown. `reason` and
    `off_because` are those of `missed_sme2`; None for one that is on the unit.
    """

    kind: str
    unit: str
    reason: str | None
    off_because: str | None

    @property
    def on_unit(self) -> bool:
        return self.unit == ON

    @property
    def known(self) -> bool:
        return self.unit != UNKNOWN


@dataclass(frozen=True)
class UnitUse:
    """The matrix operators of one run with SME2 on; `counts` is its row of the view `unit_use`."""

    run_id: str
    variant: str
    model: str
    precision: str
    platform: str
    fidelity: str
    counts: Record
    # How many operators nobody knows: they may be matrix operators as well.
    not_known: int
    operators: tuple[MatrixOperator, ...]

    @property
    def on_unit(self) -> int:
        return int(self.counts["on_unit"])

    @property
    def missed(self) -> dict[str, int]:
        """How many are off the unit for each reason, or unknown; the most common first."""
        reasons = Counter(operator.reason for operator in self.operators if operator.reason is not None)
        return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _IDENTITY},
            "matrix_operators": int(self.counts["matrix_operators"]),
            "on_sme_unit": self.on_unit,
            "unknown": int(self.counts["unknown"]),
            "by_name_alone": int(self.counts["by_name_alone"]),
            "missed": self.missed,
            "multiply_accumulates_on_sme_unit": _known(self.counts["macs_on_unit"]),
        }


def unit_use(warehouse: Warehouse, run_ids: Sequence[str]) -> list[UnitUse]:
    """What the runs with SME2 on among these used the SME unit for, in the order of the runs.

    A run without any convolution or matrix product is left out.
    """
    used = []
    not_known = operators_not_known(warehouse, run_ids)
    for counts in warehouse.query(_COUNTS, {"run_ids": list(run_ids)}).to_dict("records"):
        operators = warehouse.query(_OPERATORS, [counts["run_id"]]).to_dict("records")
        identity = {name: str(counts[name]) for name in _IDENTITY}
        used.append(
            UnitUse(
                **identity,
                counts=counts,
                not_known=not_known[counts["run_id"]],
                operators=tuple(map(_operator, operators)),
            )
        )
    return used


def unit_counts(warehouse: Warehouse, run_ids: Sequence[str]) -> dict[str, Record]:
    """The rows of the view `unit_use` of these runs."""
    rows = warehouse.query("FROM unit_use WHERE list_contains(?, run_id)", [list(run_ids)])
    return {row["run_id"]: row for row in rows.to_dict("records")}


def operators_not_known(warehouse: Warehouse, run_ids: Sequence[str]) -> dict[str, int]:
    """How many operators of each of these runs nobody knows: they may be matrix operators as well."""
    rows = warehouse.query(_NOT_KNOWN, [list(run_ids)])
    return dict.fromkeys(run_ids, 0) | dict(zip(rows["run_id"], rows["operators"].tolist(), strict=True))


def count_text(counts: Record) -> str:
    """`4 of 8 (1 by name alone), 2 unknown`: the figure of a run. It counts matrix operators, never all."""
    return _counted(claims.COUNT, counts)


def _counted(claim: Claim, counts: Record) -> str:
    named, unknown = counts["by_name_alone"], counts["unknown"]
    return claim.say(
        by_name=f" ({named} by name alone)" if named else "",
        unknown_text=f", {unknown} unknown" if unknown else "",
        by_name_alone=named,
        unknown=unknown,
        **{name: counts[name] for name in ("run_id", "on_unit", "matrix_operators")},
    )


def work_text(counts: Record) -> str:
    """The share of multiply-accumulates on the unit, as far as it is known; empty where none is counted."""
    if pd.isna(counts["macs_on_unit"]):
        return ""
    low, high = float(counts["macs_on_unit"]), float(counts["macs_on_unit_at_most"])
    uncounted = counts["uncounted"]
    without = claims.UNCOUNTED.say(run_id=counts["run_id"], uncounted=uncounted) if uncounted else ""
    return claims.WORK.say(
        run_id=counts["run_id"],
        share=percent_range_text(low, high),
        without=without,
        low=low,
        high=high,
    )


def unit_sentence(run_id: str, counts: Record | None, not_known: int) -> str:
    """`4 of 8 convolutions and matrix products, 93 % of the multiply-accumulates`."""
    if counts is None:
        none = claims.NO_KNOWN_MATRIX if not_known else claims.NO_MATRIX
        return none.say(run_id=run_id, count=not_known)
    said = ", ".join(filter(None, (_counted(claims.MATRIX_COUNT, counts), work_text(counts))))
    return said + rest_text(run_id, not_known)


def rest_text(run_id: str, not_known: int) -> str:
    """`; what is computed by 3 of the model's operators is not known`: they may be matrix operators, too."""
    return claims.REST_NOT_KNOWN.say(run_id=run_id, count=not_known) if not_known else ""


def unit_table(used: Sequence[UnitUse], speedups: Mapping[str, str]) -> TextTable:
    """A row for each run: how many matrix operators are on the unit, and why the others are not.

    `speedups` has the speedup of a run's pair in words, by run id; emulated runs have none.
    """
    table = TextTable.of(
        [
            "model",
            "precision",
            "platform",
            "matrix operators on the SME unit",
            "multiply-accumulates",
            "not on it, or unknown",
            "speedup",
        ],
        [
            [
                use.model,
                use.precision,
                use.platform,
                count_text(use.counts),
                work_text(use.counts).partition(" of ")[0] or None,
                missed_text(use),
                speedups.get(use.run_id),
            ]
            for use in used
        ],
    )
    return table if speedups else table.without("speedup")


def finding(used: Sequence[UnitUse]) -> str | None:
    """What matters most across the precisions of a model; None if nothing certain can be said.

    First choice: a kind of operator that some precisions keep off the unit and others put on it, because a
    person can choose between them. Otherwise what holds at every precision.
    """
    for uses in _by_model(used):
        if said := _depends_on_precision(uses):
            return said
    for uses in _by_model(used):
        if said := _everywhere_alike(uses):
            return said
    return None


def most_telling(used: Sequence[UnitUse]) -> UnitUse | None:
    """The run whose report to read first: the one that misses most."""
    return max(used, key=lambda use: len(use.operators) - use.on_unit, default=None)


def named(operators: Sequence[MatrixOperator]) -> str:
    """What they are called together: `the depthwise convolution`, `2 linear layers`, `3 matrix operators`."""
    kinds = {operator.kind for operator in operators}
    kind = kinds.pop() if len(kinds) == 1 else "matrix operator"
    return f"the {kind}" if len(operators) == 1 else f"{len(operators)} {kind}s"


def _by_model(used: Sequence[UnitUse]) -> list[list[UnitUse]]:
    """The runs of each model on each platform."""
    groups: dict[tuple[str, str], list[UnitUse]] = {}
    for use in used:
        groups.setdefault((use.model, use.platform), []).append(use)
    return list(groups.values())


def _depends_on_precision(uses: Sequence[UnitUse]) -> str | None:
    """A kind whose operators are all off the unit at some precisions and all on it at all others."""
    kinds = dict.fromkeys(operator.kind for use in uses for operator in use.operators)
    found: list[tuple[int, str]] = []
    for kind in kinds:
        # By run: a precision may have several, on other devices or with other settings.
        of_kind = {use.run_id: [op for op in use.operators if op.kind == kind] for use in uses}
        if not all(of_kind.values()) or not all(op.known for ops in of_kind.values() for op in ops):
            continue
        off_runs = [use for use in uses if not any(op.on_unit for op in of_kind[use.run_id])]
        on_runs = [use for use in uses if all(op.on_unit for op in of_kind[use.run_id])]
        off, on = _precisions(off_runs), _precisions(on_runs)
        if off and on and not {*off} & {*on} and len(off_runs) + len(on_runs) == len(uses):
            count = max(len(of_kind[use.run_id]) for use in off_runs)
            stays, them = (f"the {kind} stays", "it is") if count == 1 else (f"the {kind}s stay", "they are")
            said = claims.BY_PRECISION.say(
                off=_listed(off),
                stays=stays,
                on=_listed(on),
                them=them,
                because=_because([op for use in off_runs for op in of_kind[use.run_id]]),
                off_run_ids=[use.run_id for use in off_runs],
                on_run_ids=[use.run_id for use in on_runs],
            )
            found.append((count, said))
    return max(found, key=lambda item: item[0])[1] if found else None


def _everywhere_alike(uses: Sequence[UnitUse]) -> str | None:
    """What no precision changes: everything on the unit, or the same kinds off it."""
    if not all(operator.known for use in uses for operator in use.operators):
        return None
    these = {
        "model": uses[0].model,
        "precisions": _listed(_precisions(uses)),
        "run_ids": [use.run_id for use in uses],
        "known": "known " if any(use.not_known for use in uses) else "",
    }
    if all(operator.on_unit for use in uses for operator in use.operators):
        return claims.ALL_ON.say(**these)
    if not any(operator.on_unit for use in uses for operator in use.operators):
        return claims.NONE_ON.say(**these)
    kinds = [{op.kind for op in use.operators if not op.on_unit} for use in uses]
    on = {op.kind for use in uses for op in use.operators if op.on_unit}
    if all(each == kinds[0] for each in kinds) and not kinds[0] & on:
        off = " and ".join(f"{kind}s" for kind in sorted(kinds[0]))
        return claims.ALL_BUT.say(**these, kinds=off)
    return None


def _precisions(uses: Sequence[UnitUse]) -> list[str]:
    return list(dict.fromkeys(use.precision for use in uses))


def _because(operators: Sequence[MatrixOperator]) -> str:
    """The reason, if all of them have the same one."""
    reasons = {operator.off_because for operator in operators}
    return f" {reasons.pop()}" if len(reasons) == 1 and None not in reasons else ""


def _known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _operator(row: Record) -> MatrixOperator:
    reason, because = (None if pd.isna(row[name]) else str(row[name]) for name in ("reason", "because"))
    return MatrixOperator(_kind(row), row["on_sme_unit"], reason, because)


def _kind(row: Record) -> str:
    """What a person calls the operator: by the node it was exported as, or else by the name it ran under."""
    node, size = (None if pd.isna(row[name]) else str(row[name]) for name in ("node_kind", "kernel_size"))
    # An ordinary convolution of one input channel is exported as this node, too.
    if row["reason"] == "depthwise" or (node == "XNNDepthwiseConv2d" and row["groups"] != 1):
        return "depthwise convolution"
    if node == "XNNFullyConnected":
        return "linear layer"
    if node is not None and "Conv" in node:
        name = "transposed convolution" if "Transpose" in node else "convolution"
        return f"{size} {name}" if size else name
    return f"{row['op_type']} operator"


def missed_text(use: UnitUse, claim: Claim = claims.MISSED) -> str:
    missed = ", ".join(f"{count} {reason}" for reason, count in use.missed.items()) or "-"
    return claim.say(run_id=use.run_id, missed=missed)


def _listed(names: Sequence[str]) -> str:
    """`fp32`, `fp32 and int8`, `fp32, fp16 and int8`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
