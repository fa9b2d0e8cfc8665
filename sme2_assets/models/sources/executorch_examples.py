"""The example models inside the ExecuTorch wheel: `executorch:resnet8`.

Their table of names is in one file, which can be read without torch. Many need further packages or download
weights; those that need nothing are listed first.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from sme2_assets.errors import ExportError
from sme2_assets.models.sources import Entries, KnownModel, Listed, known_models
from sme2_assets.models.spec import (
    PRECISIONS,
    EagerModel,
    ModelOption,
    ModelSpec,
    OptionValue,
    cached_sha256,
    how_to_install,
)

_PACKAGE = "executorch.examples.models"
# The wheel's own class for it builds one program of one size, without a cache.
_LLAMA = "llama"
_LLAMA_CODE = Path(__file__).resolve().parent.parent / "executorch_llama.py"
_PHASES = ("prefill", "decode")
_LLAMA_SIZES = {"layers": 2, "hidden": 128, "heads": 4, "sequence": 32, "context": 64, "vocabulary": 1000}


class ExecutorchExamples(Listed):
    """Any name of ExecuTorch's `MODEL_NAME_TO_MODEL`."""

    name = "ExecuTorch's examples"
    prefix = "executorch"
    automatic = False

    def list(self) -> Entries:
        return [_spec(name) for name in self.names()]

    def names(self) -> Sequence[str]:
        table = _table()
        first = [name for name in (*known_models(self.prefix), _LLAMA) if name in table]
        return [*first, *sorted(set(table) - set(first))]

    def find(self, name: str) -> ModelSpec | None:
        return _spec(name) if name in _table() else None


def _spec(name: str) -> ModelSpec:
    module, cls = _table()[name]
    if name == _LLAMA:
        return _llama(module)
    known = known_models(ExecutorchExamples.prefix).get(name) or KnownModel(_needs(module), PRECISIONS)
    return ModelSpec(
        name=f"{ExecutorchExamples.prefix}.{name}",
        description=known.description,
        source=ExecutorchExamples.name,
        place=f"{_PACKAGE}.{module}",
        factory=functools.partial(_build, name, module, cls),
        identify=lambda: {
            "factory": f"{module}:{cls}",
            "executorch": importlib.metadata.version("executorch"),
        },
        precisions=tuple(known.precisions),
    )


def _llama(module: str) -> ModelSpec:
    return ModelSpec(
        name=f"{ExecutorchExamples.prefix}.{_LLAMA}",
        description="Llama as ExecuTorch exports it, its cache in buffers; small, with random weights",
        source=ExecutorchExamples.name,
        place=f"{_PACKAGE}.{module}",
        factory=_build_llama,
        identify=lambda: {
            "executorch": importlib.metadata.version("executorch"),
            _LLAMA_CODE.name: cached_sha256(_LLAMA_CODE),
        },
        precisions=PRECISIONS,
        options=(
            ModelOption("part", "str", choices=_PHASES),
            *(ModelOption(size, "int", default) for size, default in _LLAMA_SIZES.items()),
        ),
        parts=lambda: _PHASES,
    )


def _build_llama(**options: OptionValue) -> EagerModel:
    from sme2_assets.models.executorch_llama import Llama

    return Llama(**{**_LLAMA_SIZES, **options})  # type: ignore[arg-type]


def _build(name: str, module: str, cls: str) -> EagerModel:
    try:
        model: EagerModel = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), cls)()
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package == "executorch":
            raise
        raise ExportError(
            f"executorch:{name} ({_PACKAGE}.{module}) needs the package {package!r}, which does not import: "
            f"{error}",
            how_to_install(package),
        ) from error
    return model


@functools.cache
def _folder() -> Path | None:
    spec = importlib.util.find_spec("executorch")
    for location in spec.submodule_search_locations or [] if spec else []:
        folder = Path(location) / "examples" / "models"
        if (folder / "__init__.py").is_file():
            return folder
    return None


@functools.cache
def _table() -> dict[str, tuple[str, str]]:
    """Name to module and class. The file is run on its own, without importing its package."""
    folder = _folder()
    if folder is None:
        return {}
    spec = importlib.util.spec_from_file_location("_sme2_executorch_examples", folder / "__init__.py")
    if spec is None or spec.loader is None:
        return {}
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {str(name): (str(entry[0]), str(entry[1])) for name, entry in module.MODEL_NAME_TO_MODEL.items()}


@functools.cache
def _needs(module: str) -> str:
    """Packages that a model's own code imports but that are not installed, found without running it."""
    missing = sorted(_missing_packages(module))
    if missing:
        return f"Needs {', '.join(missing)}"
    return "Not tried here; may download weights or need further packages"


def _missing_packages(module: str) -> set[str]:
    folder = _folder()
    if folder is None:
        return set()
    path = folder.joinpath(*module.split("."))
    files = [path / "__init__.py", path / "model.py", path.with_suffix(".py")]
    imported: set[str] = set()
    for file in files:
        if file.is_file():
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported.add(node.module.partition(".")[0])
    return {
        name
        for name in imported
        if name not in sys.stdlib_module_names and importlib.util.find_spec(name) is None
    }
