"""Python files and packages that people put into a models folder.

The folders are `models/` of the data folder and those that SME2_MODELS lists. Every file there whose name
does not begin with `_` is a model (or several, see `python_code`); every folder with an `__init__.py` too.
Files that begin with `_` are helpers, which model files may import.

A model file is code, and a data folder can come from anybody. A folder is trusted by naming it in
SME2_MODELS, or once by `sme2 models --trust` or `sme2 onboard`. The list of trusted folders is in the user's
configuration, never in the data folder itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import platformdirs

from sme2_assets.errors import ExportError
from sme2_assets.models.sources import Entries, Listed
from sme2_assets.models.sources.python_code import (
    DeclaredModel,
    declared_models,
    sha256_of_code,
    sha256_of_package,
)
from sme2_assets.models.spec import EagerModel, ModelProblem, ModelSpec, cached_sha256, how_to_install
from sme2_assets.store import default_data_root, write_text_atomically

FOLDERS_VARIABLE = "SME2_MODELS"
#: `1` where nobody can be asked and everything is the user's own: a container, a CI job.
TRUST_VARIABLE = "SME2_TRUST_MODELS"
# Prefixes of other sources and names that would be read as such.
RESERVED = ("executorch", "hf", "timm", "torchvision")
_MODULE = "sme2_user_model_"


def default_folder() -> Path:
    """Where `sme2 onboard` writes."""
    return default_data_root() / "models"


def model_folders() -> list[Path]:
    """The default folder and those in SME2_MODELS, each once."""
    return list(dict.fromkeys((default_folder().resolve(), *configured_folders())))


def configured_folders() -> list[Path]:
    """The folders in SME2_MODELS: somebody named them, so their code may run."""
    named = os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
    return [Path(folder).expanduser().resolve() for folder in named if folder]


def missing_folders() -> list[ModelProblem]:
    """Folders that are configured but do not exist; the default one need not exist."""
    return [
        ModelProblem(
            folder.name,
            ModelsFolder.name,
            str(folder),
            f"the folder is named in {FOLDERS_VARIABLE} but does not exist",
            f"create it, or correct {FOLDERS_VARIABLE}",
        )
        for folder in model_folders()
        if folder != default_folder().resolve() and not folder.is_dir()
    ]


def visible(folder: Path) -> Iterator[Path]:
    """The entries of a folder, in order, without helpers and hidden files; none if it cannot be read."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    yield from (entry for entry in entries if not entry.name.startswith(("_", ".")))


def trust(folder: Path) -> Path:
    """Lets the code of a models folder run from now on; returns the file that records it."""
    place = str(folder.resolve())
    # The list has a folder per line, in UTF-8: what cannot be written so might be read as another folder.
    if not place.isprintable():
        raise ExportError(
            f"{place!r} cannot be trusted: its name has characters that cannot be shown", "rename the folder"
        )
    if place not in _trusted_folders():
        write_text_atomically(_trusted_list(), "".join(f"{each}\n" for each in (*_trusted_folders(), place)))
    return _trusted_list()


def is_trusted(folder: Path) -> bool:
    return os.environ.get(TRUST_VARIABLE) == "1" or str(folder.resolve()) in _trusted_folders()


class ModelsFolder(Listed):
    """The user's own model files."""

    name = "folder"
    prefix = ""
    automatic = True

    def list(self) -> Entries:
        found: list[ModelSpec | ModelProblem] = [*missing_folders()]
        for folder in model_folders():
            for entry in visible(folder):
                if entry.suffix == ".py" and entry.is_file():
                    found += _models_of(entry, entry.stem)
                elif (entry / "__init__.py").is_file():
                    found += _models_of(entry / "__init__.py", entry.name)
        return found


def _models_of(path: Path, name: str) -> list[ModelSpec | ModelProblem]:
    place = path.parent if path.name == "__init__.py" else path
    try:
        if name in RESERVED:
            raise ExportError(f"{name!r} is the name of a source of models", "rename it")
        return [_spec(path, declared) for declared in declared_models(path, name)]
    except ExportError as error:
        return [ModelProblem(name, ModelsFolder.name, str(place), error.what, error.remedy or "correct it")]
    except OSError as error:
        # It was deleted after it was listed, or may not be read.
        return [ModelProblem(name, ModelsFolder.name, str(place), str(error), "check the file")]


def _spec(path: Path, declared: DeclaredModel) -> ModelSpec:
    if declared.name in RESERVED:
        raise ExportError(f"{declared.name!r} is the name of a source of models", "rename it")
    package = path.name == "__init__.py"
    return ModelSpec(
        name=declared.name,
        description=declared.description,
        source=ModelsFolder.name,
        place=str(path.parent if package else path),
        factory=functools.partial(_build, path, declared.factory),
        require_allowed=functools.partial(_require_allowed, path),
        identify=functools.partial(_identify, path, declared),
        precisions=declared.precisions,
        options=declared.options,
        dimensions=declared.dimensions,
    )


def _identify(path: Path, declared: DeclaredModel) -> dict[str, str]:
    folder = path.parent
    # For a package, all its code; for a file, itself and the helpers it may import.
    code = [*folder.rglob("*.py")] if path.name == "__init__.py" else [path, *folder.glob("_*.py")]
    code += [module for helper in folder.glob("_*") if helper.is_dir() for module in helper.rglob("*.py")]
    further = {}
    for name in declared.files:
        file = folder / name
        if not file.is_file():
            raise ExportError(
                f"{declared.name} ({path}) names the file {name!r}, which is not there",
                "put it next to the model's code, or take it out of MODEL",
            )
        further[f"file {name}"] = cached_sha256(file)
    for name in declared.packages:
        # Packages next to the model file can be imported too.
        with _importable(folder):
            code_of_package = sha256_of_package(name)
        if not code_of_package:
            raise ExportError(f"{declared.name} ({path}) needs the package {name!r}", how_to_install(name))
        further[f"package {name}"] = code_of_package
    return {"factory": declared.factory, "code": sha256_of_code(list(set(code)), folder), **further}


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def _build(path: Path, factory: str, **options: Any) -> EagerModel:
    named = getattr(_import(path), factory, None)
    if named is None:
        raise ExportError(f"{path} has no {factory!r}", "correct `factory` in its MODEL declaration")
    model = named(**options) if callable(named) else named
    missing = [name for name in ("get_eager_model", "get_example_inputs") if not hasattr(model, name)]
    if missing:
        raise ExportError(
            f"What {factory} in {path} returns has no {missing[0]}()",
            "return an object with get_eager_model() and get_example_inputs()",
        )
    built: EagerModel = model
    return built


def _models_folder(path: Path) -> Path:
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _require_allowed(path: Path) -> None:
    folder = _models_folder(path)
    if folder.resolve() not in configured_folders() and not is_trusted(folder):
        raise ExportError(
            f"{path} is code, and nobody has allowed the code in {folder} to run",
            "read it; if it is yours or you trust it, run `sme2 models --trust` once for this data folder",
        )


def _trusted_list() -> Path:
    return platformdirs.user_config_path("sme2_assets", appauthor=False) / "trusted_model_folders"


def _trusted_folders() -> list[str]:
    try:
        # Only "\n" ends a line: `splitlines` and the default for newlines know others, which a name may have.
        with _trusted_list().open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return [line for line in file.read().split("\n") if line]
    except FileNotFoundError:
        return []


def _import(path: Path) -> ModuleType:
    """The file as a module, run again each time: it may have been edited."""
    _require_allowed(path)
    package, folder = path.name == "__init__.py", _models_folder(path)
    # Last, so that no user file hides a module of Python or of an installed package.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder) and (name[:1] == "_" or name.startswith(_MODULE)):
            del sys.modules[name]
    importlib.invalidate_caches()
    name = _MODULE + (path.parent.name if package else path.stem).replace("-", "_")
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ExportError(f"{path} cannot be imported", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and relative imports look the module up while it is being run.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
