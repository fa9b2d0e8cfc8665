"""Which measured variants a name means. Without pandas, so that a mistyped name is reported at once."""

from __future__ import annotations

from sme2_assets.errors import ExportError
from sme2_assets.models.registry import variants_of
from sme2_assets.models.spec import plain_key
from sme2_assets.warehouse.store import Warehouse


def measured_variants(warehouse: Warehouse, model: str) -> list[str]:
    """The variants that a model's name means; for a model that is gone, those that were measured."""
    try:
        return variants_of(model)
    except ExportError:
        with warehouse.connect() as connection:
            rows = connection.execute(
                "SELECT DISTINCT variant FROM runs WHERE $key IN (variant, model) ORDER BY variant",
                {"key": plain_key(model)},
            ).fetchall()
        if not rows:
            raise
        return [str(variant) for [variant] in rows]
