"""`foreign.json`: what is known about a trace that another tool made. Unknown facts are None."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, StrictStr

from sme2_assets.evidence.documents import Count, Document, Name, Part, PathInside, Text

FOREIGN_FILE = "foreign.json"
FOREIGN = "foreign"
UNKNOWN = "unknown"


class Facts(Part):
    """What is known about a trace besides its events."""

    model: StrictStr | None = None
    precision: StrictStr | None = None
    platform: StrictStr | None = None
    sme2: StrictStr | None = None
    threads: Count | None = None
    warmup: Count | None = None

    @property
    def variant(self) -> str:
        if self.model is None:
            return UNKNOWN
        return self.model if self.precision is None else f"{self.model}-{self.precision}"

    @property
    def target(self) -> str:
        return f"{self.platform or UNKNOWN}-sme2_{self.sme2 or UNKNOWN}"

    @property
    def unknown(self) -> list[str]:
        names = ("model", "precision", "platform", "sme2", "threads")
        return [name for name in names if getattr(self, name) is None]


class ForeignStatement(Document):
    """What was stated about the evidence. Unlike the evidence it may be stated again, and differently."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Ingest the trace again."

    run_id: Name
    source: StrictStr
    ingested_at: Text
    facts: Facts
    # What the public kit's manifest says about the trace; None if it says nothing.
    kit: dict[str, Any] | None
    file_sha256: dict[PathInside, Text] = Field(default_factory=dict)
