"""Model files that `sme2 onboard` writes: a template to start from, or one for a model that is somewhere else
(a folder of weights, a callable in a package).

Belongs here: the text of such files, and the functions they call: these are imported from here in people's
files, so this module keeps its name. Writing a file neither runs nor imports the model.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from sme2_assets.errors import ExportError
from sme2_assets.models.huggingface.types import (
    DECODE,
    PREFILL,
    WHOLE,
    model_type,
    package_folder,
    type_names,
)
from sme2_assets.models.registry import catalogue
from sme2_assets.models.sources.folder import RESERVED, default_folder, trust
from sme2_assets.models.spec import PRECISIONS, EagerModel, check_name, how_to_install
from sme2_assets.store import write_text_atomically

_CALLABLE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<factory>[A-Za-z_]\w*)")
_REMEDY = "name a folder with config.json and *.safetensors, or a callable as package.module:factory"


def write_template(name: str, folder: Path | None = None, source: str | None = None) -> Path:
    """Write a working model file of that name, for what `source` names; existing files are not touched."""
    check_name(name)
    if name in RESERVED:
        raise ExportError(f"{name!r} is the name of a source of models", "choose another name")
    found = catalogue()
    owners = {spec.name: f"{spec.source} ({spec.place})" for spec in found.specs}
    owners |= {problem.name: f"{problem.source} ({problem.place})" for problem in found.problems}
    if name in owners:
        raise ExportError(f"There is already a model {name!r}: {owners[name]}", "choose another name")
    path = (folder or default_folder()) / f"{name}.py"
    if path.exists():
        raise ExportError(f"{path} already exists", "choose another name, or edit that file")
    # A user who starts a models folder here writes what will be in it.
    first = not any(path.parent.glob("*.py"))
    write_text_atomically(path, model_file(name, source) if source else template(name))
    if first:
        trust(path.parent)
    return path


def template(name: str) -> str:
    """The text of a model file: it works as it is, and says what to replace."""
    words = [word for word in re.split(r"[^A-Za-z0-9]", name) if word]
    cls = "".join(word[:1].upper() + word[1:] for word in words)
    if not cls[0].isalpha():
        cls = f"Model{cls}"
    text = (resources.files(__package__) / "template.py.txt").read_text(encoding="utf-8")
    return text.replace("@NAME@", name).replace("@CLASS@", cls)


def model_file(name: str, source: str) -> str:
    """The text of a model file for what `source` names."""
    if Path(source).expanduser().is_dir():
        return _for_folder(name, Path(source).expanduser().resolve())
    if found := _CALLABLE.fullmatch(source):
        return _for_callable(name, found["module"], found["factory"])
    raise ExportError(f"{source!r} is neither a folder nor a callable of a package", _REMEDY)


def checkpoint(folder: str, part: str, **sizes: int) -> EagerModel:
    """A part of the model whose configuration and weights are in a folder."""
    from sme2_assets.models.sources.huggingface import build

    return build(_type_in(Path(folder)).replace(".", "_"), part, folder, **sizes)


def made_elsewhere(made: Any, source: str) -> Any:
    """The result of a callable as a model: it is one already, or a module with a tuple of example inputs."""
    if hasattr(made, "get_eager_model"):
        return made
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], tuple)):
        raise ExportError(
            f"{source} returns a {type(made).__name__}, which is not a model",
            "return (module, (input, ...)), or an object with get_eager_model() and get_example_inputs()",
        )

    class Made:
        def get_eager_model(self) -> Any:
            return made[0]

        def get_example_inputs(self) -> tuple[Any, ...]:
            return made[1]

    return Made()


def _type_in(folder: Path) -> str:
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{folder} has no config.json with a model_type ({error})", _REMEDY) from None
    if not isinstance(kind, str) or kind not in type_names():
        needs = how_to_install("transformers") if package_folder() is None else _REMEDY
        raise ExportError(f"{folder} is of the type {kind!r}, which transformers does not have here", needs)
    return kind


def _for_folder(name: str, folder: Path) -> str:
    kind = _type_in(folder)
    files = [str(path) for path in sorted([folder / "config.json", *folder.glob("*.safetensors")])]
    if len(files) < 2:
        raise ExportError(f"{folder} has no weights (*.safetensors)", _REMEDY)
    parts = model_type(kind).parts or (WHOLE,)
    entries, functions = [], []
    for part in parts:
        entry = {
            "name": name if part == WHOLE else f"{name}_{part}",
            "factory": part,
            "description": f"{kind}, {part}, with the weights in {folder}",
            "precisions": list(PRECISIONS),
            "files": files,
        }
        sizes = {"sequence": 32, "context": 64} if part in (PREFILL, DECODE) else {}
        sizes["batch"] = 1
        arguments = ", ".join(f"{size}: int = {value}" for size, value in sizes.items())
        passed = ", ".join(f"{size}={size}" for size in sizes)
        entries.append(f"    {entry!r},\n")
        functions.append(f"\n\ndef {part}({arguments}):\n    return checkpoint(FOLDER, {part!r}, {passed})\n")
    return (
        f'"""The model {name}, from a folder as transformers saves it. Arguments are options."""\n\n'
        "from sme2_assets.models.brought import checkpoint\n\n"
        f"FOLDER = {str(folder)!r}\nMODEL = [\n{''.join(entries)}]\n{''.join(functions)}"
    )


def _for_callable(name: str, module: str, factory: str) -> str:
    entry = {
        "name": name,
        "factory": "model",
        "description": f"{factory} of {module}",
        "packages": [module.partition(".")[0]],
    }
    return (
        f'"""The model {name}, made by a callable in an installed package."""\n\n'
        f"from {module} import {factory} as make\n\n"
        "from sme2_assets.models.brought import made_elsewhere\n\n"
        f"MODEL = {entry!r}\n\n\n"
        f"def model():\n    return made_elsewhere(make(), {f'{module}:{factory}'!r})\n"
    )
