"""Changes of a model that are worth a try: other ways to write it, and its other precisions."""

from __future__ import annotations

from typing import NamedTuple

from sme2_assets.models.registry import Variant, model_spec
from sme2_assets.models.rewrites import OPTION, REWRITES, rewritten


class Change(NamedTuple):
    """Name as people type it, words, the code to write, and the variant that is measured."""

    name: str
    what: str
    code: str | None
    key: str


def changes_of(variant: Variant, *, rewrites: bool = True, precisions: bool = True) -> list[Change]:
    """None for a finished program, which is what it is."""
    spec = model_spec(variant.model)
    changes = []
    if rewrites and spec.factory is not None and OPTION not in dict(spec.values):
        for name, rewrite in REWRITES.items():
            other = rewritten(spec, name)
            key = Variant(other.key, variant.precision).key
            changes.append(Change(f"{other.title}-{variant.precision}", rewrite.what, rewrite.code, key))
    if precisions:
        for other_precision in spec.precisions:
            if other_precision != variant.precision:
                key = Variant(spec.key, other_precision).key
                changes.append(Change(f"{spec.title}-{other_precision}", f"at {other_precision}", None, key))
    return changes
