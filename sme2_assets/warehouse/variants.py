"""Which variants a name means to whoever reads. Without pandas: a mistyped name is told at once."""

from __future__ import annotations

from sme2_assets.errors import ExportError
from sme2_assets.models.given import variants_of
from sme2_assets.models.spec import plain_key
from sme2_assets.warehouse.store import Warehouse


def measured_variants(warehouse: Warehouse, model: str) -> list[str]:
    """The variants that a model means; those of one that is gone are those that were measured."""
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
