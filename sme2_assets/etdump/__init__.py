"""ETDump bytes -> columns: one row per profile event, in file order.

What belongs here: the FlatBuffer layout of an ETDump, the check of every offset in it, and the tree that its
flat list of events means (which row lies inside which call). Pure functions of bytes, NumPy only.
What does not: categories and statistics (`analysis`), the warehouse, ExecuTorch's Python modules, Dagster.
"""

from __future__ import annotations

from sme2_assets.etdump.events import EventKind, Events
from sme2_assets.etdump.reader import read_etdump

__all__ = ["EventKind", "Events", "read_etdump"]
