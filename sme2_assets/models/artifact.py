"""An exported model on disk, read back and verified without torch.

The manifest describes the export completely, including the hash of every file next to it. Models to profile
are loaded through `load_exported`, so an altered file is never measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sme2_assets.errors import ExportError, first_line
from sme2_assets.evidence.arms import TAPS_FILE
from sme2_assets.evidence.numerics import Ranking
from sme2_assets.store import sha256_of_file

SCHEMA = 2
# One more whenever our own code makes a different export of the same model: it is made again, then.
EXPORT_CODE_VERSION = 3
MANIFEST = "manifest.json"
PTE = "model.pte"
ETRECORD = "model.etrecord"
OPERATORS = "operators.json"
"""What the program consists of and which source asked for it: see `sme2_assets.evidence.operators`."""
DELEGATION = "delegation.json"
"""Which operators were delegated, which were not, and why: see `sme2_assets.models.delegation`."""
DATA = "model.ptd"
LIBRARY_PREFIX = "ops_"
TAPPED = "tapped.npz"
"""The program with intermediate values as outputs, which `taps.json` names, as its difference from the
program: see `sme2_assets.models.taps` and `sme2_assets.models.pieces`."""


@dataclass(frozen=True)
class ExportedModel:
    """A variant that is ready to run: the program, its inputs, and what should come out."""

    variant: str
    model: str
    precision: str
    directory: Path
    pte: Path
    etrecord: Path | None
    """None for a program that came without one."""
    operators: Path
    delegation: Path
    inputs: list[Path]
    expected_outputs: list[Path]
    """Empty for a program without an eager model to compare it with."""
    manifest: Path
    pte_sha256: str
    cached: bool
    taps: Path | None = None
    """The values in which the arms are compared; None for a program that was exported elsewhere."""
    tapped: Path | None = None
    """The program with taps, as its difference from `pte`. None if intermediate values are not available: the
    arms are then compared in their outputs only."""
    method: str = "forward"
    steps: int = 1
    """Inferences that are compared, from the initial state; more than one for a program that has state."""
    data: Path | None = None
    """External weights (.ptd)."""
    libraries: tuple[Path, ...] = ()
    """Kernels that the runner loads before the program."""
    rankings: dict[int, Ranking] = field(default_factory=dict)
    """What outputs that are indices point into."""

    def runner_flags(self, put: Callable[[Path], str], program: Path | None = None) -> list[str]:
        """The flags that give a runner the program and its inputs; `put` copies a file to where it runs."""
        flags = ["--model", put(program or self.pte), "--method", self.method]
        for path in self.inputs:
            flags += ["--input", put(path)]
        if self.data is not None:
            flags += ["--data", put(self.data)]
        for library in self.libraries:
            flags += ["--op-library", put(library)]
        return [*flags, "--steps", str(self.steps)] if self.steps > 1 else flags


@dataclass(frozen=True)
class FileFacts:
    """A file of the export, as it was written."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class TensorFacts:
    """An input or output of the program, and the file with its values."""

    file: str | None
    """None for an output whose right values are not known."""
    dtype: str
    shape: list[int]
    ranks: RankingFacts | None = None
    """For an output that is indices: what it points into."""


@dataclass(frozen=True)
class RankingFacts:
    """The file with the values that indices point into: see `sme2_assets.evidence.numerics.Ranking`."""

    file: str
    axis: int
    ordered: bool


@dataclass(frozen=True)
class Tolerance:
    """How close an output must be to the expected one, as signal to quantisation noise ratio."""

    metric: str
    minimum_db: float
    """The lowest possible ratio if there is nothing to compare with."""
    own: bool = False
    """Whether the model sets it. Otherwise integers and booleans must all equal the expected ones."""


@dataclass(frozen=True)
class OperatorCounts:
    """What the program consists of: delegate calls, and kernel calls of ExecuTorch's own library."""

    delegates: int
    delegated: dict[str, int]
    """Operators inside delegates, by edge dialect name such as `aten.convolution.default`."""
    portable: dict[str, int]
    """Kernel calls of the program, by the name the runtime knows, such as `aten::mean.out`."""

    @property
    def delegated_total(self) -> int:
        return sum(self.delegated.values())

    @property
    def portable_total(self) -> int:
        return sum(self.portable.values())


@dataclass(frozen=True)
class ModelManifest:
    """The whole provenance of one export."""

    variant: str
    model: str
    precision: str
    description: str
    content_key: str
    identity: dict[str, str]
    """What the model's source says decides what is built."""
    seed: int
    parameters: int | None
    """None for a program that came without its model."""
    macs: int | None
    """Multiply-accumulates of all operators that are counted; None if none is."""
    is_classifier: bool
    inputs: list[TensorFacts]
    outputs: list[TensorFacts]
    """Outputs as the program returns them; the expected files hold the reference's own float32 values."""
    expected: str
    """What the expected files are, in words."""
    tolerance: Tolerance
    operators: OperatorCounts
    delegated_share: float | None
    """Of the operators, by count."""
    options: dict[str, Any]
    versions: dict[str, str]
    files: dict[str, FileFacts]
    torch_import_seconds: float
    export_seconds: float
    export_peak_memory_bytes: int
    method: str = "forward"
    steps: int = 1
    changed_inputs: int = 0
    """How many inputs an inference changes in place; as changed, they come first among its outputs."""
    state_bytes: int | None = None
    """The size of the buffers that an inference changes; None if it is not known."""
    schema: int = field(default=SCHEMA)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True, allow_nan=False) + "\n"


def read_manifest(path: Path) -> ModelManifest:
    """The manifest in that file, or an error if it is incomplete or not of this schema."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}, this version reads {SCHEMA}")
        return _manifest(raw)
    except FileNotFoundError:
        raise _damaged(path.parent, f"{path.name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path.parent, f"{path.name} cannot be read ({first_line(error)})") from error


def load_exported(directory: Path) -> ExportedModel:
    """The exported model in that folder, once every file is verified to be as it was written."""
    manifest = read_manifest(directory / MANIFEST)
    inputs = [tensor.file for tensor in manifest.inputs if tensor.file is not None]
    expected = [tensor.file for tensor in manifest.outputs if tensor.file is not None]
    ranked = [tensor.ranks.file for tensor in manifest.outputs if tensor.ranks is not None]
    for name in (PTE, OPERATORS, DELEGATION, *inputs, *expected, *ranked):
        if name not in manifest.files:
            raise _damaged(directory, f"{MANIFEST} does not vouch for {name}")
    for name, facts in manifest.files.items():
        _verify(directory, name, facts)
    return ExportedModel(
        variant=manifest.variant,
        model=manifest.model,
        precision=manifest.precision,
        directory=directory,
        pte=directory / PTE,
        etrecord=directory / ETRECORD if ETRECORD in manifest.files else None,
        operators=directory / OPERATORS,
        delegation=directory / DELEGATION,
        inputs=[directory / name for name in inputs],
        expected_outputs=[directory / name for name in expected],
        manifest=directory / MANIFEST,
        pte_sha256=manifest.files[PTE].sha256,
        cached=True,
        taps=directory / TAPS_FILE if TAPS_FILE in manifest.files else None,
        tapped=directory / TAPPED if TAPPED in manifest.files else None,
        method=manifest.method,
        steps=manifest.steps,
        data=directory / DATA if DATA in manifest.files else None,
        libraries=tuple(
            directory / name for name in sorted(manifest.files) if name.startswith(LIBRARY_PREFIX)
        ),
        rankings={
            index: Ranking(np.load(directory / ranks.file, allow_pickle=False), ranks.axis, ranks.ordered)
            for index, tensor in enumerate(manifest.outputs)
            if (ranks := tensor.ranks) is not None
        },
    )


def file_facts(path: Path) -> FileFacts:
    """Hash and size of a file."""
    return FileFacts(sha256_of_file(path), path.stat().st_size)


def _verify(directory: Path, name: str, facts: FileFacts) -> None:
    # A name from a manifest must not lead out of its folder.
    if Path(name).name != name:
        raise _damaged(directory, f"{MANIFEST} names a file outside the folder: {name!r}")
    path = directory / name
    try:
        found = file_facts(path)
    except FileNotFoundError:
        raise _damaged(directory, f"{name} is missing") from None
    except OSError as error:
        raise _damaged(directory, f"{name} cannot be read ({first_line(error)})") from error
    if found != facts:
        raise _damaged(directory, f"{name} is not the file that was exported: it was altered")


def _manifest(raw: Mapping[str, Any]) -> ModelManifest:
    values = dict(raw)
    values["inputs"] = [TensorFacts(**tensor) for tensor in raw["inputs"]]
    values["outputs"] = [
        TensorFacts(**{**tensor, "ranks": RankingFacts(**tensor["ranks"]) if tensor.get("ranks") else None})
        for tensor in raw["outputs"]
    ]
    values["tolerance"] = Tolerance(**raw["tolerance"])
    values["operators"] = OperatorCounts(**raw["operators"])
    values["files"] = {name: FileFacts(**facts) for name, facts in raw["files"].items()}
    return ModelManifest(**values)


def _damaged(directory: Path, what: str) -> ExportError:
    return ExportError(
        f"The exported model in {directory} cannot be used: {what}",
        "delete that folder and export the model again",
    )
