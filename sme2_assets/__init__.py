"""Measures what Arm's SME2 matrix unit does for ExecuTorch models, as a Dagster data platform.

From Python: `import sme2_assets as sme2; lab = sme2.open()`; see docs/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sme2_assets.api import Comparison, DataFolder, Explained, Report, open
    from sme2_assets.errors import Sme2Error

__version__ = "0.1.0"
__all__ = ["Comparison", "DataFolder", "Explained", "Report", "Sme2Error", "__version__", "open"]


def __getattr__(name: str) -> Any:
    """Imports what is offered here only when it is used: many processes need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sme2_assets import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
