"""What all assets share: clear failures and common metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from sme2_assets.errors import Sme2Error

DOCS = "See docs/{page} in the repository."


@contextmanager
def clear_failures() -> Iterator[None]:
    """Turns an error meant for people into a failed step that shows cause and remedy."""
    try:
        yield
    except Sme2Error as error:
        metadata: dict[str, dg.MetadataValue] = {"what happened": dg.MetadataValue.text(error.what)}
        if error.remedy:
            metadata["what to do"] = dg.MetadataValue.text(error.remedy)
        raise dg.Failure(description=str(error), metadata=metadata, allow_retries=False) from error
