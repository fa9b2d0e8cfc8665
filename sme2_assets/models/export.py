"""A model variant becomes a folder: program, ETRecord, inputs, expected outputs, reports, manifest.

The folder is named by everything that decides its content (the model, versions, options), so the same
variant is not exported twice and a cached one is found without importing torch. It is written under
another name and renamed when complete: a killed export leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sme2_assets.errors import ExportError, disk_failure, first_line
from sme2_assets.evidence.arms import TAPS_FILE, Taps
from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.evidence.numerics import IDENTICAL_SQNR_DB, MINIMUM_SQNR_DB, Ranking
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.models.artifact import (
    DATA,
    DELEGATION,
    ETRECORD,
    EXPORT_CODE_VERSION,
    LIBRARY_PREFIX,
    MANIFEST,
    OPERATORS,
    PTE,
    SCHEMA,
    TAPPED,
    ExportedModel,
    ModelManifest,
    OperatorCounts,
    RankingFacts,
    TensorFacts,
    Tolerance,
    file_facts,
    load_exported,
)
from sme2_assets.models.attribution import describe_lowered, describe_program
from sme2_assets.models.delegation import described_delegation
from sme2_assets.models.etrecord import save_without_weights
from sme2_assets.models.existing import operator_counts, read_program, require_weights
from sme2_assets.models.failures import missing_kernels
from sme2_assets.models.inputs import input_array, tensor_array
from sme2_assets.models.lowering import (
    BuiltModel,
    LoweredProgram,
    build_model,
    export_program,
    free_lowered_programs,
    kept_in_float,
    lower_program,
    one_thread,
    program_with_taps,
)
from sme2_assets.models.pieces import Difference, PieceIndex
from sme2_assets.models.progress import OnStage, Progress
from sme2_assets.models.quantise import SCHEMES, left_out
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.models.sources.pte import PROGRAM_REMEDY
from sme2_assets.models.spec import FORWARD, SEED, ModelSpec, Variant
from sme2_assets.models.time_limit import end_if_time_is_up, export_timeout_s, time_limit
from sme2_assets.store import one_at_a_time

Log = Callable[[str], None]

EXPECTED = "outputs of the eager fp32 model on the same input files (for fp16: the inputs rounded to half)"
NOT_EXPECTED = "none: the program came without an eager model to compare it with"
# What makes an export.
_LIBRARIES = ("torch", "torchao", "executorch")
_EXPORT_LIBRARIES = (
    "executorch.exir",
    "executorch.backends.xnnpack.partition.xnnpack_partitioner",
    # Registers the out variants of quantise and dequantise, for those that stay outside of delegates.
    "executorch.kernels.quantized",
    "torchao.quantization.pt2e.quantize_pt2e",
)
_STAGING_PREFIX = ".exporting-"
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class _Content:
    """What an export consists of, beside the program itself, before it is written."""

    described: ProgramOperators
    delegation: DelegationReport
    operators: OperatorCounts
    inputs: list[npt.NDArray]
    expected: list[npt.NDArray] | None
    outputs: list[tuple[str, list[int]]]
    """Type and shape as the program returns them, for every inference that is compared."""
    parameters: int | None
    is_classifier: bool
    tolerance: Tolerance
    method: str = FORWARD
    steps: int = 1
    changed_inputs: int = 0
    state_bytes: int | None = None
    rankings: Mapping[int, Ranking] = field(default_factory=dict)
    beside: Mapping[str, Path] = field(default_factory=dict)
    """Files that the program needs to run, by name in the export: weights, kernels."""
    partitioners: str | None = None
    unquantised: dict[str, str] = field(default_factory=dict)
    """Layers that a quantised program computes in floating point, by module, and why."""
    rewritten: list[str] = field(default_factory=list)
    """The code that rewrites of the graph stand for."""
    taps: Taps | None = None


def export_variant(variant_key: str, artifacts: Path, *, log: Log) -> ExportedModel:
    """Export the variant, or find the export of the same model, options and versions."""
    variant = parse_variant(variant_key)
    return export_model(model_spec(variant.model), variant, artifacts, log=log)


def export_model(
    spec: ModelSpec, variant: Variant, artifacts: Path, *, log: Log, on_stage: OnStage | None = None
) -> ExportedModel:
    """The same for a model that need not be registered; `on_stage` is told each stage of the export."""
    key = content_key(spec, variant)
    directory = _directory(spec, variant, artifacts)
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = directory.parent / f".{directory.name}.lock"
    with one_at_a_time(lock, f"{variant}: waiting for another process that exports it", log):
        progress = Progress(str(variant), log, on_stage=on_stage)
        return _found(directory, progress) or _export(spec, variant, key, directory, progress)


def is_exported(spec: ModelSpec, variant: Variant, artifacts: Path) -> bool:
    """Whether there is an export of the same content; its files are only verified when it is loaded."""
    return (_directory(spec, variant, artifacts) / MANIFEST).is_file()


def _directory(spec: ModelSpec, variant: Variant, artifacts: Path) -> Path:
    return artifacts / "models" / variant.key / content_key(spec, variant)[:16]


def _found(directory: Path, progress: Progress) -> ExportedModel | None:
    """An earlier export of the same content; a damaged one is removed."""
    if not directory.exists():
        return None
    try:
        exported = load_exported(directory)
    except ExportError as error:
        progress.say(f"exporting again: {error.what}")
        shutil.rmtree(directory)
        return None
    progress.say(f"already exported, {directory.name}")
    return exported


def content_key(spec: ModelSpec, variant: Variant) -> str:
    """A hash of everything that decides the result of an export. Does not import torch."""
    content = {
        "schema": SCHEMA,
        "code_version": EXPORT_CODE_VERSION,
        "variant": variant.key,
        "identity": spec.identity(),
        "seed": SEED,
        "options": _options(variant),
        "minimum_sqnr_db": MINIMUM_SQNR_DB.get(variant.precision),
        # PyTorch's own index says that a build is for the CPU, and others do not.
        "versions": {name: version.removesuffix("+cpu") for name, version in _versions(_LIBRARIES).items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _export(
    spec: ModelSpec, variant: Variant, key: str, directory: Path, progress: Progress
) -> ExportedModel:
    try:
        with _staging_folder(directory) as staging:
            with time_limit(export_timeout_s()), quiet_libraries():
                manifest = _fill(staging, spec, variant, key, progress)
            (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            _publish(staging, directory)
    except ExportError as error:
        # The error must say what was being exported; the code that raised it does not know.
        if error.what.startswith(f"{variant} "):
            raise
        raise ExportError(f"{variant} could not be exported: {error.what}", error.remedy) from error
    except Exception as error:
        versions = "compare the installed versions with those the project asks for (`sme2 doctor`)"
        known = disk_failure(str(error)) or ExportError(first_line(error), versions)
        raise ExportError(f"{variant} could not be exported: {known.what}", known.remedy) from error
    operators = manifest.operators
    progress.say(
        f"exported in {manifest.export_seconds:.1f} s, {manifest.files[PTE].bytes:,} bytes, "
        f"operators: {operators.delegated_total} delegated (delegate calls: {operators.delegates}), "
        f"{operators.portable_total} portable, "
        f"peak memory {manifest.export_peak_memory_bytes / 2**20:,.0f} MiB"
    )
    return replace(load_exported(directory), cached=False)


def _fill(staging: Path, spec: ModelSpec, variant: Variant, key: str, progress: Progress) -> ModelManifest:
    """Write every file of the export except the manifest, and return the manifest that vouches for them."""
    spec.require_allowed()
    with progress.step("loading torch and ExecuTorch", "load"):
        torch_import_seconds = load_libraries()
    start = time.perf_counter()
    with one_thread():
        if spec.pte:
            content = _existing(spec, staging, progress)
        else:
            content = _lowered(spec, variant, staging, progress)
        with progress.step("writing", "lower"):
            inputs, outputs = _write_files(content, staging)
    if not spec.pte:
        free_lowered_programs((staging / PTE).stat().st_size)
    export_seconds = time.perf_counter() - start
    return ModelManifest(
        variant=variant.key,
        model=variant.model,
        precision=variant.precision,
        description=spec.description,
        content_key=key,
        identity=spec.identity(),
        seed=SEED,
        parameters=content.parameters,
        macs=content.described.macs,
        is_classifier=content.is_classifier,
        inputs=inputs,
        outputs=outputs,
        expected=EXPECTED if content.expected is not None else NOT_EXPECTED,
        tolerance=content.tolerance,
        operators=content.operators,
        delegated_share=content.delegation.delegated_share,
        options={
            **_options(variant),
            "partitioner": content.partitioners,
            "in_floating_point": content.unquantised,
            "rewritten": content.rewritten,
        },
        versions={"python": platform.python_version()} | _versions((*_LIBRARIES, "numpy")),
        files={path.name: file_facts(path) for path in sorted(staging.iterdir())},
        torch_import_seconds=round(torch_import_seconds, 3),
        export_seconds=round(export_seconds, 3),
        export_peak_memory_bytes=progress.peak_memory_bytes,
        method=content.method,
        steps=content.steps,
        changed_inputs=content.changed_inputs,
        state_bytes=content.state_bytes,
    )


def _lowered(spec: ModelSpec, variant: Variant, staging: Path, progress: Progress) -> _Content:
    """A model that is built, exported and lowered here."""
    with progress.step("building the model", "build"):
        built = build_model(spec, variant.precision, progress)
    exported_program, inputs = export_program(built, variant.precision, progress)
    unquantised = _unquantised(exported_program, built, variant.precision, progress)
    program = lower_program(exported_program, inputs, progress, portable=spec.portable)
    described = describe_lowered(program.executorch)
    if not spec.libraries and (missing := missing_kernels(described)):
        progress.say(f"{missing.what}: it will not run. What to do: {missing.remedy}")
    with progress.step("writing the program", "lower"):
        pieces = _write_program(program, exported_program, staging, progress)
    taps, tapped = program_with_taps(exported_program, program, inputs, variant.precision, progress)
    if tapped is not None:
        difference = Difference(pieces)
        tapped.write_to_file(difference)
        difference.save(staging / TAPPED)
    reference = built.reference
    steps = len(reference.outputs)
    changed = program.changed_inputs
    return _Content(
        described=described,
        delegation=program.delegation,
        operators=program.operators,
        inputs=[input_array(value) for value in program.inputs],
        expected=[tensor_array(value) for value in reference.expected(changed)],
        outputs=[(_dtype_name(value), list(value.shape)) for value in program.outputs] * steps,
        parameters=built.parameters,
        is_classifier=built.is_classifier,
        tolerance=Tolerance("sqnr_db", built.minimum_sqnr_db, built.has_own_bound),
        steps=steps,
        changed_inputs=len(changed),
        state_bytes=program.state_bytes,
        beside=_beside(spec),
        rankings={len(changed) + index: ranking for index, ranking in reference.rankings.items()},
        partitioners=program.partitioners,
        unquantised=unquantised,
        rewritten=list(getattr(built.eager, "rewritten", ())),
        taps=taps,
    )


def _write_program(
    program: LoweredProgram, exported_program: Any, staging: Path, progress: Progress
) -> PieceIndex:
    with (staging / PTE).open("wb") as file:
        pieces = PieceIndex(file)
        program.executorch.write_to_file(pieces)
    try:
        save_without_weights(exported_program, program.edge_program, program.executorch, staging / ETRECORD)
    except OSError:
        raise
    except Exception as error:
        end_if_time_is_up(error)
        # ExecuTorch cannot write every graph that it lowers, such as one with branches. Measurements do not
        # need the file: it is for ExecuTorch's own tools.
        (staging / ETRECORD).unlink(missing_ok=True)
        progress.say(f"without an ETRecord, which ExecuTorch cannot write: {first_line(error)}")
    return pieces


def _unquantised(program: Any, built: BuiltModel, precision: str, progress: Progress) -> dict[str, str]:
    if precision not in SCHEMES:
        return {}
    found = left_out(program, precision, kept_in_float(built.eager))
    if found:
        progress.say(f"in floating point: {'; '.join(f'{path} ({why})' for path, why in found.items())}")
    return found


def _existing(spec: ModelSpec, staging: Path, progress: Progress) -> _Content:
    """A program that was exported elsewhere, as it is."""
    assert spec.pte is not None
    with progress.step("reading the program", "read"):
        try:
            require_weights(spec.pte, spec.method, spec.data)
            facts = read_program(spec.pte, spec.method, spec.input_files)
            described = describe_program(spec.pte.read_bytes(), method=spec.method, at_bounds=facts.at_bounds)
        except ExportError:
            raise
        except Exception as error:
            # Whatever ExecuTorch's readers raise for a table that refers to things that do not exist.
            raise ExportError(
                f"{spec.pte.name} is broken: it describes a program that cannot exist", PROGRAM_REMEDY
            ) from error
    shutil.copyfile(spec.pte, staging / PTE)
    if spec.etrecord:
        shutil.copyfile(spec.etrecord, staging / ETRECORD)
    return _Content(
        described=described,
        delegation=described_delegation(described),
        operators=operator_counts(facts, described),
        inputs=facts.inputs,
        expected=None,
        outputs=facts.outputs * facts.steps,
        parameters=None,
        is_classifier=False,
        tolerance=Tolerance("sqnr_db", -IDENTICAL_SQNR_DB),
        method=spec.method,
        steps=facts.steps,
        beside=_beside(spec),
    )


def _beside(spec: ModelSpec) -> dict[str, Path]:
    libraries = {f"{LIBRARY_PREFIX}{index}{file.suffix}": file for index, file in enumerate(spec.libraries)}
    return {**({DATA: spec.data} if spec.data else {}), **libraries}


def _write_files(content: _Content, staging: Path) -> tuple[list[TensorFacts], list[TensorFacts]]:
    for name, file in content.beside.items():
        shutil.copyfile(file, staging / name)
    (staging / OPERATORS).write_text(content.described.to_json(), encoding="utf-8")
    (staging / DELEGATION).write_text(content.delegation.to_json(), encoding="utf-8")
    if content.taps is not None:
        (staging / TAPS_FILE).write_text(content.taps.to_json(), encoding="utf-8")
    inputs = []
    for name, array in zip(_save(staging, "input", content.inputs), content.inputs, strict=True):
        inputs.append(TensorFacts(name, str(array.dtype), list(array.shape)))
    names: Sequence[str | None] = [None] * len(content.outputs)
    if content.expected is not None:
        names = _save(staging, "expected", content.expected)
    ranks = {}
    for index, ranking in content.rankings.items():
        ranks[index] = RankingFacts(f"ranked_{index}.npy", ranking.axis, ranking.ordered)
        np.save(staging / ranks[index].file, ranking.values)
    outputs = [
        TensorFacts(name, dtype, shape, ranks.get(index))
        for index, (name, (dtype, shape)) in enumerate(zip(names, content.outputs, strict=True))
    ]
    return inputs, outputs


def _save(staging: Path, kind: str, arrays: list[npt.NDArray]) -> list[str]:
    names = [f"{kind}_{index}.npy" for index in range(len(arrays))]
    for name, array in zip(names, arrays, strict=True):
        np.save(staging / name, array)
    return names


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def load_libraries() -> float:
    """Import what an export needs and return how long that took: it is most of a small export's time."""
    start = time.perf_counter()
    importlib.import_module("torch")
    # Importing torch resets the level of its logger; the imports below make it log warnings.
    logging.getLogger("torch").setLevel(logging.ERROR)
    # By name: they are imported for their side effects and would look unused.
    for module in _EXPORT_LIBRARIES:
        importlib.import_module(module)
    return time.perf_counter() - start


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the libraries' deprecation notes from people; their errors still come through."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    root = logging.getLogger()

    def is_ours_or_serious(record: logging.LogRecord) -> bool:
        # ExecuTorch logs through the root logger, which the caller may use too.
        from_library = any(part in _LIBRARIES for part in Path(record.pathname).parts)
        return record.levelno >= logging.ERROR or not from_library

    for logger in loggers:
        logger.setLevel(logging.ERROR)
    root.addFilter(is_ours_or_serious)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(is_ours_or_serious)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _staging_folder(directory: Path) -> Iterator[Path]:
    """A folder next to the final one; deleted afterwards, unless it was renamed to it."""
    parent = directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(parent)
    staging = Path(tempfile.mkdtemp(prefix=f"{_STAGING_PREFIX}{directory.name}-", dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    """Remove what killed exports left. A recent folder may belong to an export that is still running."""
    for folder in parent.glob(f"{_STAGING_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _publish(staging: Path, directory: Path) -> None:
    # mkdtemp's folder is for its owner alone; the result is for everyone the umask allows.
    umask = os.umask(0)
    os.umask(umask)
    staging.chmod(0o777 & ~umask)
    try:
        staging.rename(directory)
    except OSError:
        # Another process has exported the same key in the meantime: its folder is as good as ours.
        if not directory.is_dir():
            raise


def _options(variant: Variant) -> dict[str, Any]:
    scheme = SCHEMES.get(variant.precision)
    return {variant.precision: scheme} if scheme else {}


def _versions(packages: Sequence[str]) -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in packages}
