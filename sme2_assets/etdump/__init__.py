"""ETDump bytes -> columns: one row per profile event, in file order.

What belongs here: the FlatBuffer layout of an ETDump, the check of every offset in it, and the tree behind
its flat list of events (which row is inside which call). Pure functions of bytes, NumPy only.
What does not: categories and statistics (`analysis`), the warehouse, ExecuTorch's Python modules, Dagster.
"""

from __future__ import annotations

from sme2_assets.etdump.events import EventKind, Events
from sme2_assets.etdump.reader import read_etdump, read_etdump_in_parts

__all__ = ["EventKind", "Events", "read_etdump", "read_etdump_in_parts"]
