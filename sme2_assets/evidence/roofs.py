"""What plain code reaches on a device: the roofs of a roofline. The native runner writes the file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from sme2_assets.evidence.documents import Count, Document, Number, Part

ROOFS_FILE = "roofs.json"
Rate = Annotated[Number, Field(gt=0)]


class Roof(Part):
    """With that many threads, the best of several short measurements."""

    threads: Count
    # 10^9 operations per second, two per multiply-accumulate, in 128-bit vectors: no limit of the SME unit.
    fp32_gflops: Rate
    # 10^9 bytes per second, read from a buffer of 128 MiB.
    read_gb_s: Rate


class Roofs(Document):
    """With one thread, and with those of the session."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Restore the folder from a copy, or measure again."

    roofs: Annotated[list[Roof], Field(min_length=1)]
