"""What changes to a model gained when they were tried: a file for each variant, the source of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import StrictStr

from sme2_assets.evidence.documents import Count, Document, Flag, Number, Part, Text, Upgrade

AS_IT_IS = "as it is"
# The smallest gain in the share on the unit that is worth a person's attention.
LEAST_GAIN = 0.01


class TriedChange(Part):
    """One change and its result; a change that was not measured has its problem instead."""

    # As people type it, such as `toy_cnn@rewrite=framed-fp16`.
    change: Text
    what: StrictStr
    code: StrictStr | None
    problem: Text | None
    # Emulated, with SME2 on.
    run_id: Text | None
    # The share on the unit of the multiply-accumulates of the model as it is, and by how much it grows.
    share: Number | None
    gain: Number | None
    # For that, or for fewer calls or operators with as much on the unit.
    recommended: Flag
    matrix_operators: Count | None = None
    on_unit: Count | None = None
    operators: Count | None = None
    delegate_calls: Count | None = None
    # Operators of the model that no delegate took.
    outside: Count | None = None
    program_bytes: Count | None = None
    worst_db: Number | None = None
    # The operators that move onto the unit, by module and line.
    onto_unit: list[StrictStr]


def _with_one_share(fields: dict[str, Any]) -> dict[str, Any]:
    """What was partly unknown: the most that it could be of the model as it is, the least of a change."""
    changes = []
    for change in fields["changes"]:
        least, most = change.pop("least"), change.pop("most")
        changes.append({**change, "share": most if change["change"] == AS_IT_IS else least})
    return {**fields, "changes": changes}


class Advice(Document):
    """The model as it is, then the changes tried: the largest gain first, those not measured last."""

    VERSION: ClassVar[int] = 2
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _with_one_share}
    REMEDY: ClassVar[str] = "Remove it, and try again: `sme2 advise MODEL`."

    variant: Text
    changes: list[TriedChange]


def advice_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []
