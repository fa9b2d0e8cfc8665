"""What changes of a model brought when they were tried: a file for each variant, the source of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import StrictStr

from sme2_assets.evidence.documents import Count, Document, Flag, Number, Part, Text

AS_IT_IS = "as it is"


class Change(Part):
    """One change, and what became of it; what was not measured has its problem instead."""

    # As people type it, such as `toy_cnn@rewrite=framed-fp16`.
    change: Text
    what: StrictStr
    code: StrictStr | None
    problem: Text | None
    # Emulated, with SME2 on.
    run_id: Text | None
    # Of the multiply-accumulates of the model as it is, the share on the unit: at least, and at most where
    # some of it is unknown.
    least: Number | None
    most: Number | None
    # By how much that grows at least.
    gain: Number | None
    recommended: Flag
    matrix_operators: Count | None = None
    on_unit: Count | None = None
    operators: Count | None = None
    delegate_calls: Count | None = None
    program_bytes: Count | None = None
    worst_db: Number | None = None
    # The operators that come onto the unit, by module and line.
    onto_unit: list[StrictStr]


class Advice(Document):
    """The model as it is, then what was tried: the largest gain first, what could not be measured last."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Remove it, and try again: `sme2 advise MODEL`."

    variant: Text
    changes: list[Change]


def advice_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []
