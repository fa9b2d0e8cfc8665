"""The warehouse: Parquet files are the truth, a published DuckDB file is what people open.

Belongs here: table schemas, views, writing, publishing, reading. Does not: how rows are computed
(analysis), Dagster, devices, torch.
"""

from sme2_assets.warehouse.store import Warehouse

__all__ = ["Warehouse"]
