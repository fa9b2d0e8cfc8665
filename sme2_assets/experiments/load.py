"""From a file to an experiment: ours as it is, the kit's translated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sme2_assets.experiments.kit import is_kit, translated, with_platform
from sme2_assets.experiments.schema import MODELS, Experiment, ExperimentError
from sme2_assets.written.documents import Kind, read_document
from sme2_assets.written.problems import Lines, problems_of

KIND = Kind(
    "an experiment file",
    "Correct the file; `sme2 config templates` shows valid ones.",
    "`sme2 config new` writes a file to start from.",
)


@dataclass(frozen=True)
class Loaded:
    """An experiment whose file is well-formed; nothing beyond the file has been checked."""

    path: Path
    experiment: Experiment
    notes: tuple[str, ...] = ()
    from_kit: bool = False
    lines: Lines = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.experiment.name or self.path.stem

    @property
    def output_folder(self) -> Path | None:
        """Where the experiment's reports are copied to, if anywhere."""
        output = self.experiment.output
        return None if output is None else self.path.resolve().parent / Path(output).expanduser()


def load(path: Path, platform: str | None = None) -> Loaded:
    """The experiment in a file; `platform` replaces the platforms that it names.

    One error lists everything that is wrong with the file, with its place.
    """
    document = read_document(path, KIND)
    if is_kit(document.data):
        experiment, notes = translated(document.data, path, document.lines, platform)
        return Loaded(path, experiment, tuple(notes), True, document.lines)
    experiment = parsed(document.data, path.name, document.lines)
    if platform is None:
        return Loaded(path, experiment, lines=document.lines)
    note = (
        f"measured on {platform}, as --platform says; the file's platforms, with their devices, CPUs and "
        "power, are not used"
    )
    return Loaded(path, with_platform(experiment, platform), (note,), lines=document.lines)


def parsed(data: Mapping[str, Any], name: str, lines: Lines | None = None) -> Experiment:
    """The experiment in a document, or an error with every problem in it."""
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise ExperimentError(name, problems_of(error, MODELS, lines)) from None
