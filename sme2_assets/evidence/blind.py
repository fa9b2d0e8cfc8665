"""A blind trial: two identical arms, the second slowed down by an amount that the judge does not know.

`trial.json` is what was observed, and all that a verdict may rest on. `truth.json` next to it is the amount:
it is read after the verdict, and its hash in the trial shows that it has not changed since the trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, StrictStr

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.device import Fidelity
from sme2_assets.evidence.documents import Count, Document, Name, Number, Sequence, Text, Time
from sme2_assets.evidence.result import MOST_SLOWDOWN_PERCENT
from sme2_assets.store import new_directory, sha256_of_text, write_text_atomically

TRIAL_FILE, TRUTH_FILE = "trial.json", "truth.json"
_REMEDY = "Restore the folder from a copy, or remove it: one trial less does no harm."
Times = Annotated[list[Annotated[Number, Field(gt=0)]], Field(min_length=1)]


class Truth(Document):
    """How much slower the second arm was made; 0 for a placebo."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = _REMEDY

    dose_percent: Annotated[Number, Field(ge=0, le=MOST_SLOWDOWN_PERCENT)]
    # So that the hash does not give the dose away.
    salt: Text


class Trial(Document):
    """What was observed: the median of each round's process in both arms."""

    VERSION: ClassVar[int] = 2
    # Version 2 has the number of the session; earlier trials count as the oldest.
    UPGRADES: ClassVar = {1: lambda v1: {**v1, "sequence": 0}}
    REMEDY: ClassVar[str] = _REMEDY

    session_id: Name
    sequence: Sequence
    variant: Text
    platform: Text
    sme2: Text
    device: Text
    arch: Text
    fidelity: Fidelity
    threads: Count
    cpus: StrictStr
    power_mode: StrictStr
    started_at: Time
    seconds: Number
    # Of both arms, warm-up included: the part of `seconds` spent measuring.
    inference_seconds: Number
    a_ns: Times
    b_ns: Times
    truth_sha256: Text


def write_trial(folder: Path, trial: Trial, truth: Truth) -> None:
    with new_directory(folder / trial.session_id) as staging:
        write_text_atomically(staging / TRIAL_FILE, trial.to_json())
        write_text_atomically(staging / TRUTH_FILE, truth.to_json())


def trial_folders(folder: Path) -> Iterator[Path]:
    """In the order of the sessions."""
    if folder.is_dir():
        # The name of a folder that is being filled begins with a dot.
        yield from sorted(path for path in folder.glob("[!.]*") if (path / TRIAL_FILE).is_file())


def revealed(folder: Path, trial: Trial) -> Truth:
    """The truth of a trial; refused if it was changed since."""
    truth = Truth.read(folder / TRUTH_FILE)
    if sha256_of_text(truth.to_json()) != trial.truth_sha256:
        raise EvidenceError(f"{folder / TRUTH_FILE} is not what it was when the trial was made.", _REMEDY)
    return truth
