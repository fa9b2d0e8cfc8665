"""Which operators XNNPACK took, which it did not, and why.

The partitioner logs its reasons, node by node. They are collected from the log while the program is lowered.
For an operator that it does not know at all, and where it gives no reason, the wording is ours.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sme2_assets.evidence.delegation import DelegationReport, DelegationRow
from sme2_assets.evidence.operators import Node, ProgramOperators
from sme2_assets.models.provenance import operator_name, origin_of

UNKNOWN_OPERATOR = "XNNPACK has no such operator"
NOT_ASKED = "the model is exported without XNNPACK"
NO_REASON = "XNNPACK's partitioner left it out without a reason"
LOWERED_ELSEWHERE = "not known: the program was lowered elsewhere"
_CONFIGURATIONS = "executorch.backends.xnnpack.partition.config"
_NO_WORK = ("executorch_call_delegate",)


@contextlib.contextmanager
def partitioner_reasons() -> Iterator[dict[str, str]]:
    """Collects, by node name, why the partitioner left nodes out while the block runs."""
    from executorch.exir.backend.utils import WhyNoPartition

    reasons: dict[str, str] = {}

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            why = record.msg
            if isinstance(why, WhyNoPartition) and why.node is not None:
                reasons[why.node.name] = why.reason

    # One logger per configuration module; they exist once the partitioner is imported.
    names = [name for name in logging.root.manager.loggerDict if name.startswith(f"{_CONFIGURATIONS}.")]
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.level, logger.propagate) for logger in loggers]
    listener = Listener()
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(listener)
    try:
        yield reasons
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(listener)
            logger.setLevel(level)
            logger.propagate = propagate


def delegation_report(
    graph_module: Any, partitioner: Any | None, reasons: dict[str, str]
) -> DelegationReport:
    """The report of a lowered edge program; without a partitioner nothing was to be delegated."""
    from executorch.exir.lowered_backend_module import get_lowered_submodules

    counts: Counter[tuple[str, str | None, str | None, bool, str | None]] = Counter()
    for _, lowered, _ in get_lowered_submodules(graph_module):
        for node in lowered.original_module.graph.nodes:
            if (name := operator_name(node)) is not None:
                origin = origin_of(node)
                counts[name, origin.module, origin.source, True, None] += 1
    for node in graph_module.graph.nodes:
        name = operator_name(node)
        if name is None or name.split(".")[1] in _NO_WORK:
            continue
        reason = reasons.get(node.name)
        if partitioner is None:
            reason = NOT_ASKED
        elif reason is None:
            known = name.partition(".")[2] in partitioner.target_partitioner_configs
            reason = NO_REASON if known else UNKNOWN_OPERATOR
        origin = origin_of(node)
        counts[name, origin.module, origin.source, False, reason] += 1
    return _report(counts)


def described_delegation(program: ProgramOperators) -> DelegationReport:
    """The report of a program that was lowered elsewhere: what it contains, without reasons."""
    counts: Counter[tuple[str, str | None, str | None, bool, str | None]] = Counter()
    for delegate in program.delegates:
        for node in delegate.nodes:
            counts[_of(node, delegated=True)] += 1
    for node in program.portable:
        counts[_of(node, delegated=False)] += 1
    return _report(counts)


def _of(node: Node, *, delegated: bool) -> tuple[str, str | None, str | None, bool, str | None]:
    return node.kind, node.module, node.source, delegated, None if delegated else LOWERED_ELSEWHERE


def _report(counts: Counter[tuple[str, str | None, str | None, bool, str | None]]) -> DelegationReport:
    """Operators that were left out come first, then by count: those are what people look for."""
    rows = [
        DelegationRow(
            operator=operator, module=module, source=source, delegated=delegated, reason=reason, count=count
        )
        for (operator, module, source, delegated, reason), count in counts.items()
    ]

    def place(row: DelegationRow) -> tuple[Any, ...]:
        return row.delegated, -row.count, row.operator, row.module or "", row.source or ""

    return DelegationReport(rows=sorted(rows, key=place))
