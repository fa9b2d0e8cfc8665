"""`delegation.json`: which operators XNNPACK took, which not, and why; made by `models.delegation`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import StrictStr

from sme2_assets.evidence.documents import Count, Document, Flag, Part

DELEGATION_FILE = "delegation.json"


class DelegationRow(Part):
    """Operators of one kind that one line of the model asked for, all treated alike."""

    operator: StrictStr
    """Its edge dialect name, such as `aten.mean.dim`; for a program from elsewhere its serialised name."""
    module: StrictStr | None
    source: StrictStr | None
    delegated: Flag
    reason: StrictStr | None
    """Why it was not delegated; None where it was."""
    count: Count


class DelegationReport(Document):
    """Every operator of a program, delegated or not."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Export the model again, and measure it again."

    rows: list[DelegationRow]

    @property
    def delegated(self) -> int:
        return sum(row.count for row in self.rows if row.delegated)

    @property
    def total(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def delegated_share(self) -> float | None:
        """By count; None for a program without operators."""
        return self.delegated / self.total if self.total else None
