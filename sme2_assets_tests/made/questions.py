"""The questions of docs/questions.md."""

from __future__ import annotations

import re

from sme2_assets.store import CHECKOUT


def questions() -> dict[str, str]:
    """Their SQL, by their number."""
    page = CHECKOUT / "docs" / "questions.md"
    found = re.findall(r"^## (\d+)\. .*?\n+```sql\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return dict(found)
