"""A model variant becomes a folder: program, ETRecord, inputs, expected outputs, manifest.

The folder is named by everything that decides its content (code, options, versions), so the same
variant is not exported twice and a cached one is found without importing torch. It is written under
another name and renamed when complete: a killed export leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sme2_assets.errors import ExportError
from sme2_assets.models.artifact import (
    ETRECORD,
    MANIFEST,
    PTE,
    SCHEMA,
    ExportedModel,
    ModelManifest,
    OperatorCounts,
    TensorFacts,
    Tolerance,
    file_facts,
    load_exported,
)
from sme2_assets.models.registry import SEED, EagerModel, ModelSpec, Variant, model_spec, parse_variant
from sme2_assets.store import one_at_a_time

Log = Callable[[str], None]

CALIBRATION_BATCHES = 16
# Decibels below which an output is not the model's, some way under what the built-in models reach.
# Shifting the channels of any one layer of the eager models falls below the fp32 bound. The other bounds
# are coarser: in mobilenet_v3_small, fp16's misses 5 and int8's 17 of the 18 squeeze-and-excite layers.
MINIMUM_SQNR_DB = {"fp32": 80.0, "fp16": 30.0, "int8": 12.0}
EXPECTED = "outputs of the eager fp32 model on the same input files (for fp16: the inputs rounded to half)"
OPTIONS: dict[str, Any] = {
    "partitioner": "XnnpackPartitioner",
    "int8": {
        "quantizer": "XNNPACKQuantizer",
        "scheme": "static symmetric, per channel",
        "calibration_batches": CALIBRATION_BATCHES,
    },
}
_PACKAGES = ("torch", "executorch", "torchao", "numpy")
_LIBRARIES = ("torch", "torchao", "executorch")
_EXPORT_MODULES = (
    "executorch.exir",
    "executorch.backends.xnnpack.partition.xnnpack_partitioner",
    # Registers the out variants of quantise and dequantise, for those that stay outside of delegates.
    "executorch.kernels.quantized",
    "torchao.quantization.pt2e.quantize_pt2e",
)
_STAGING_PREFIX = ".exporting-"
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True)
class _Program:
    """A lowered program and what is known about it, before it is written."""

    executorch: Any
    inputs: tuple[Any, ...]
    expected: list[Any]
    outputs: list[Any]
    parameters: int
    macs: int
    operators: OperatorCounts


def export_variant(variant_key: str, artifacts: Path, *, log: Log) -> ExportedModel:
    """Export the variant, or find the export of the same code, options and versions."""
    variant = parse_variant(variant_key)
    spec = model_spec(variant.model)
    key = content_key(spec, variant)
    directory = artifacts / "models" / variant.key / key[:16]
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = directory.parent / f".{directory.name}.lock"
    with one_at_a_time(lock, f"{variant}: waiting for another process that exports it", log):
        return _found_or_exported(spec, variant, key, directory, log)


def _found_or_exported(
    spec: ModelSpec, variant: Variant, key: str, directory: Path, log: Log
) -> ExportedModel:
    if directory.exists():
        try:
            exported = load_exported(directory)
        except ExportError as error:
            log(f"{variant}: exporting again: {error.what}")
            shutil.rmtree(directory)
        else:
            log(f"{variant}: already exported, {directory.name}")
            return exported
    return _export(spec, variant, key, directory, log)


def content_key(spec: ModelSpec, variant: Variant) -> str:
    """A hash of everything that decides what an export gives. Imports no torch."""
    modules = sorted({__name__, spec.factory_module, *spec.sources})
    content = {
        "schema": SCHEMA,
        "variant": variant.key,
        "factory": spec.factory,
        "seed": SEED,
        "options": _options(variant),
        "minimum_sqnr_db": MINIMUM_SQNR_DB[variant.precision],
        "versions": _versions(),
        "sources": {module: _source_sha256(module) for module in modules},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _export(spec: ModelSpec, variant: Variant, key: str, directory: Path, log: Log) -> ExportedModel:
    try:
        with _staging_folder(directory) as staging:
            with _quiet_libraries():
                manifest = _fill(staging, spec, variant, key, log)
            (staging / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            _publish(staging, directory)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(
            f"{variant} could not be exported: {_first_line(error)}",
            "if the cause names an operator, replace it in the model; else compare the installed versions "
            "with those the project asks for (`sme2 doctor`)",
        ) from error
    operators = manifest.operators
    log(
        f"{variant}: exported in {manifest.export_seconds:.1f} s, {manifest.files[PTE].bytes:,} bytes, "
        f"operators: {operators.delegated_total} delegated (delegate calls: {operators.delegates}), "
        f"{operators.portable_total} portable"
    )
    return replace(load_exported(directory), cached=False)


def _fill(staging: Path, spec: ModelSpec, variant: Variant, key: str, log: Log) -> ModelManifest:
    """Write every file of the export but the manifest, and give the manifest that vouches for them."""
    log(f"{variant}: loading torch and ExecuTorch")
    torch_import_seconds = _load_libraries()
    start = time.perf_counter()
    with _one_thread():
        program = _build_program(spec, variant, log)
        log(f"{variant}: writing")
        inputs, outputs = _write_files(program, staging)
    export_seconds = time.perf_counter() - start
    return ModelManifest(
        variant=variant.key,
        model=variant.model,
        precision=variant.precision,
        description=spec.description,
        content_key=key,
        seed=SEED,
        parameters=program.parameters,
        macs=program.macs,
        inputs=inputs,
        outputs=outputs,
        expected=EXPECTED,
        tolerance=Tolerance("sqnr_db", MINIMUM_SQNR_DB[variant.precision]),
        operators=program.operators,
        options=_options(variant),
        versions=_versions(),
        files={path.name: file_facts(path) for path in sorted(staging.iterdir())},
        torch_import_seconds=round(torch_import_seconds, 3),
        export_seconds=round(export_seconds, 3),
    )


def _build_program(spec: ModelSpec, variant: Variant, log: Log) -> _Program:
    import torch

    log(f"{variant}: building the model")
    eager = spec.build()
    model = eager.get_eager_model().eval()
    inputs = _cast(tuple(eager.get_example_inputs()), variant.precision)
    reference_inputs = _cast(inputs, "fp32")
    with torch.no_grad():
        expected = _flat(model(*reference_inputs))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    macs = _count_macs(model, reference_inputs)
    if variant.precision == "fp16":
        model = model.half()
    elif variant.precision == "int8":
        log(f"{variant}: calibrating on {CALIBRATION_BATCHES} batches")
        model = _quantise(model, inputs, _calibration_inputs(eager, inputs))
    log(f"{variant}: exporting")
    exported_program = torch.export.export(model, inputs, strict=False)
    with torch.no_grad():
        outputs = _flat(exported_program.module()(*inputs))
    log(f"{variant}: lowering to XNNPACK")
    executorch, operators = _lower(exported_program)
    return _Program(executorch, inputs, expected, outputs, parameters, macs, operators)


def _lower(exported_program: Any) -> tuple[Any, OperatorCounts]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(
        exported_program, partitioner=[XnnpackPartitioner()], generate_etrecord=True
    )
    delegated = _delegated_operators(edge.exported_program().graph_module)
    executorch = edge.to_executorch()
    delegates, portable = _called_operators(executorch.executorch_program)
    return executorch, OperatorCounts(delegates, delegated, portable)


def _delegated_operators(graph_module: Any) -> dict[str, int]:
    from executorch.exir.lowered_backend_module import get_lowered_submodules

    counts: Counter[str] = Counter()
    for _, lowered, _ in get_lowered_submodules(graph_module):
        for node in lowered.original_module.graph.nodes:
            name = _edge_name(node)
            if name:
                counts[name] += 1
    return dict(sorted(counts.items()))


def _edge_name(node: Any) -> str | None:
    """`aten.convolution.default` for an operator; None for what is only structure (getitem, inputs)."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return None
    namespace, _, operator = schema.name.partition("::")
    return f"{namespace}.{operator}.{schema.overload_name or 'default'}"


def _called_operators(program: Any) -> tuple[int, dict[str, int]]:
    """Delegate calls and kernel calls as the runtime will make them, from the program itself."""
    delegates = 0
    portable: Counter[str] = Counter()
    for plan in program.execution_plan:
        for chain in plan.chains:
            for instruction in chain.instructions:
                arguments = instruction.instr_args
                kind = type(arguments).__name__
                if kind == "DelegateCall":
                    delegates += 1
                elif kind == "KernelCall":
                    operator = plan.operators[arguments.op_index]
                    portable[f"{operator.name}.{operator.overload}".rstrip(".")] += 1
    return delegates, dict(sorted(portable.items()))


def _quantise(model: Any, inputs: tuple[Any, ...], calibration: list[tuple[Any, ...]]) -> Any:
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(model, inputs, strict=False).module(), quantizer)
    with torch.no_grad():
        for batch in calibration:
            prepared(*batch)
    return convert_pt2e(prepared)


def _calibration_inputs(eager: EagerModel, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    import torch

    own = getattr(eager, "get_calibration_inputs", None)
    if own is not None:
        return [tuple(batch) for batch in own(CALIBRATION_BATCHES)]
    generator = torch.Generator().manual_seed(SEED)

    def similar(value: Any) -> Any:
        # Integers are indices or masks: random ones would be out of range.
        if not _is_float(value):
            return value
        return torch.randn(value.shape, generator=generator, dtype=value.dtype)

    return [tuple(similar(value) for value in inputs) for _ in range(CALIBRATION_BATCHES)]


def _cast(inputs: tuple[Any, ...], precision: str) -> tuple[Any, ...]:
    """Floating point inputs at the precision's own type; integers are indices and stay as they are."""
    import torch

    dtype = torch.float16 if precision == "fp16" else torch.float32
    return tuple(value.to(dtype) if _is_float(value) else value for value in inputs)


def _is_float(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _flat(outputs: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _count_macs(model: Any, inputs: tuple[Any, ...]) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(*inputs)
    # The counter counts a multiply and an add as two.
    return counter.get_total_flops() // 2


def _write_files(program: _Program, staging: Path) -> tuple[list[TensorFacts], list[TensorFacts]]:
    (staging / PTE).write_bytes(program.executorch.buffer)
    program.executorch.get_etrecord().save(str(staging / ETRECORD))
    inputs = []
    for index, value in enumerate(program.inputs):
        name = f"input_{index}.npy"
        array = value.detach().contiguous().numpy()
        np.save(staging / name, array)
        inputs.append(TensorFacts(name, str(array.dtype), list(array.shape)))
    outputs = []
    for index, (expected, given) in enumerate(zip(program.expected, program.outputs, strict=True)):
        name = f"expected_{index}.npy"
        np.save(staging / name, expected.detach().contiguous().numpy())
        outputs.append(TensorFacts(name, str(given.dtype).removeprefix("torch."), list(given.shape)))
    return inputs, outputs


def _load_libraries() -> float:
    """Import what an export needs and say how long that took: it is most of a small export."""
    start = time.perf_counter()
    importlib.import_module("torch")
    # Importing torch sets the level of its logger again; what follows is what it complains about.
    logging.getLogger("torch").setLevel(logging.ERROR)
    # By name, because they are imported for what importing does and would look unused.
    for module in _EXPORT_MODULES:
        importlib.import_module(module)
    return time.perf_counter() - start


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on how work is split: one thread gives the same weights and ranges everywhere."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Keep the libraries' deprecation notes away from people; their errors still come through."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    root = logging.getLogger()

    def is_ours_or_serious(record: logging.LogRecord) -> bool:
        # ExecuTorch logs through the root logger, where the caller's own messages may go too.
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
    """A folder beside the final one; gone afterwards, unless it was renamed to it."""
    parent = directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(parent)
    staging = Path(tempfile.mkdtemp(prefix=f"{_STAGING_PREFIX}{directory.name}-", dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    """What killed exports left. A young folder may belong to an export that is still running."""
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
        # Another process exported the same key meanwhile: its folder is as good as ours.
        if not directory.is_dir():
            raise


def _options(variant: Variant) -> dict[str, Any]:
    return {
        "partitioner": OPTIONS["partitioner"],
        **({"int8": OPTIONS["int8"]} if variant.precision == "int8" else {}),
    }


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in _PACKAGES
    }


def _source_sha256(module: str) -> str:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ExportError(f"The source of {module} was not found", "reinstall the package")
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
