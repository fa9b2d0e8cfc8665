"""What a Python file says about the models in it, read without running it.

A file is parsed, not imported: listing models must not import torch, and a broken file must do no harm. It
declares a model by its code alone (one class with ExecuTorch's two methods), or by a literal:

    MODEL = {"name": "my_net", "factory": "MyNet", "description": "...", "precisions": ["fp32", "int8"]}

`MODEL` may be a list of these for several models in one file; an entry may leave out what its factory
already says, and name further files that decide what is built (`"files": ["weights.pt"]`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from sme2_assets.errors import ExportError
from sme2_assets.models.spec import (
    COMMON_PRECISIONS,
    PRECISIONS,
    Bounds,
    ModelOption,
    OptionValue,
    cached_sha256,
    check_name,
)

DECLARATION = "MODEL"
_SHAPES = "get_dynamic_shapes"
_METHODS = {"get_eager_model", "get_example_inputs"}
_KEYS = ("name", "factory", "description", "precisions", "files", "packages")
_KINDS = ("int", "float", "bool", "str")
_EXAMPLE = 'MODEL = {"factory": "MyModel", "description": "What it is"}'

_Definition: TypeAlias = ast.ClassDef | ast.FunctionDef
_Constants: TypeAlias = dict[str, OptionValue]


@dataclass(frozen=True)
class DeclaredModel:
    """A model as its file declares it."""

    name: str
    factory: str
    description: str
    precisions: tuple[str, ...]
    options: tuple[ModelOption, ...] | None
    files: tuple[str, ...]
    packages: tuple[str, ...]
    """Top-level packages whose code decides what is built."""
    dimensions: Mapping[str, Bounds] | None
    """Those that can vary; None if only running the code tells."""


@dataclass(frozen=True)
class Signature:
    """What a factory says about itself."""

    description: str
    options: tuple[ModelOption, ...] | None
    """None if the factory is not defined in the file that was read."""


def declared_models(path: Path, default_name: str) -> list[DeclaredModel]:
    """The models that a file declares; an error says why it declares none."""
    return _declared(path, default_name, cached_sha256(path))


@functools.lru_cache(maxsize=256)
def _declared(path: Path, default_name: str, _sha256: str) -> list[DeclaredModel]:
    module = _parse(path)
    declaration = _literal_declaration(module)
    if declaration is None:
        return [_declared_model(module, {}, default_name)]
    entries = declaration if isinstance(declaration, list) else [declaration]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ExportError(f"{DECLARATION} is not a dictionary, nor a list of them", f"write {_EXAMPLE}")
    return [_declared_model(module, entry, default_name) for entry in entries]


def signature_of(path: Path, factory: str) -> Signature:
    """Description and options of a class or function in a file."""
    return _signature(_parse(path), factory)


def sha256_of_code(files: Sequence[Path], root: Path) -> str:
    """One hash of several files and their paths below a folder."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root).as_posix()}\0{cached_sha256(path)}\n".encode())
    return digest.hexdigest()


def is_top_level(name: str) -> bool:
    """Whether it can be the name of a top-level package or module, which is found without importing it."""
    return name.isidentifier() and not keyword.iskeyword(name) and name != "__main__"


def sha256_of_package(name: str) -> str:
    """One hash of all the code of a top-level package or module, without importing it; empty if not found."""
    try:
        # Of a dotted name, the part before the dot would be imported, which runs code.
        found = importlib.util.find_spec(name) if is_top_level(name) else None
    except (ImportError, ValueError):
        found = None
    if found is not None and found.submodule_search_locations:
        top = Path(next(iter(found.submodule_search_locations)))
        return sha256_of_code(list(top.rglob("*.py")), top)
    file = Path(found.origin) if found is not None and found.origin else None
    return cached_sha256(file) if file is not None and file.is_file() else ""


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise ExportError(
            f"{path.name}{line} is not Python: {error.msg}", "correct the file; then list the models again"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExportError(f"{path.name} cannot be read as Python ({error})", "correct the file") from None
    except OSError as error:
        raise ExportError(f"{path.name} cannot be read: {error.strerror}", "check its permissions") from None


def _literal_declaration(module: ast.Module) -> Any:
    for node in module.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(target, ast.Name) and target.id == DECLARATION for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            try:
                return ast.literal_eval(node.value) if node.value is not None else None
            except (ValueError, TypeError, RecursionError):
                raise ExportError(
                    f"{DECLARATION} in line {node.lineno} is computed: it is read without running the file",
                    f"write it out, such as {_EXAMPLE}",
                ) from None
    return None


def _declared_model(module: ast.Module, entry: dict[Any, Any], default_name: str) -> DeclaredModel:
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        raise ExportError(
            f"{DECLARATION} has the key {unknown[0]!r}, which is not known",
            f"its keys are {', '.join(_KEYS)}",
        )
    name = _text_of(entry, "name", default_name)
    check_name(name)
    factory = _text_of(entry, "factory", "") or _only_model_class(module)
    signature = _signature(module, factory)
    precisions = _texts_of(entry, "precisions", COMMON_PRECISIONS)
    wrong = [precision for precision in precisions if precision not in PRECISIONS]
    if wrong or not precisions or len(set(precisions)) < len(precisions):
        raise ExportError(
            f"{DECLARATION} offers the precisions {list(precisions)}",
            f"name each of those that fit once: {', '.join(PRECISIONS)}",
        )
    packages = _texts_of(entry, "packages", ())
    if nested := [package for package in packages if not is_top_level(package)]:
        raise ExportError(
            f"'packages' of {DECLARATION} has {nested[0]!r}, which is not the name of a top-level package",
            "name the package that it is in, without dots: all the code of that package counts",
        )
    return DeclaredModel(
        name=name,
        factory=factory,
        description=_text_of(entry, "description", "") or signature.description or "A model of yours",
        precisions=precisions,
        options=signature.options,
        files=_texts_of(entry, "files", ()),
        packages=packages,
        dimensions=_dimensions(module, factory),
    )


def _text_of(entry: dict[Any, Any], key: str, default: str) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise ExportError(f"{key!r} of {DECLARATION} is not a text", f"write {_EXAMPLE}")
    return value


def _texts_of(entry: dict[Any, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = entry.get(key, default)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ExportError(f"{key!r} of {DECLARATION} is not a list of texts", f'write "{key}": ["..."]')
    return tuple(value)


def _definitions(module: ast.Module) -> dict[str, _Definition]:
    return {node.name: node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _lineage(cls: ast.ClassDef, known: dict[str, _Definition]) -> Iterator[ast.ClassDef]:
    """A class and its bases, as far as they are in the file."""
    seen: set[str] = set()
    waiting = [cls]
    while waiting:
        current = waiting.pop(0)
        if current.name in seen:
            continue
        seen.add(current.name)
        yield current
        for base in current.bases:
            defined = known.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(defined, ast.ClassDef):
                waiting.append(defined)


def _methods(cls: ast.ClassDef, known: dict[str, _Definition]) -> set[str]:
    return {
        node.name
        for ancestor in _lineage(cls, known)
        for node in ancestor.body
        if isinstance(node, ast.FunctionDef)
    }


def _dimensions(module: ast.Module, factory: str) -> dict[str, Bounds] | None:
    """The dimensions that a class can vary, where the file alone says so, with every number written out."""
    known = _definitions(module)
    cls = known.get(factory)
    if not isinstance(cls, ast.ClassDef):
        return None
    lineage = list(_lineage(cls, known))
    if any(not isinstance(base, ast.Name) or base.id not in known for each in lineage for base in each.bases):
        return None
    text = ast.dump(module)
    if not any(name in text for name in (_SHAPES, "__getattr__", "__new__")):
        return {}
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and _last_name(node) == "Dim"]
    own = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign) and node.value in calls
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    shapes = [node for each in lineage for node in each.body if getattr(node, "name", "") == _SHAPES]
    lines = [line for node in shapes if isinstance(node, ast.FunctionDef) for line in node.body]
    names = [node for line in lines for node in ast.walk(line) if isinstance(node, ast.Name)]
    local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    if not calls or not lines or {node.id for node in names} - own - local - {"torch", "Dim"}:
        return None
    try:
        return {ast.literal_eval(call.args[0]): _bounds(call) for call in calls if call.args}
    except (ValueError, TypeError, RecursionError):
        return None


def _bounds(call: ast.Call) -> Bounds:
    bounds = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    return bounds.get("min", 0), bounds.get("max", math.inf)


def _only_model_class(module: ast.Module) -> str:
    known = _definitions(module)
    found = [
        node
        for name, node in known.items()
        if isinstance(node, ast.ClassDef) and not name.startswith("_") and _methods(node, known) >= _METHODS
    ]
    # A base class of the others is not the intended model.
    bases = {ancestor.name for cls in found for ancestor in list(_lineage(cls, known))[1:]}
    names = [cls.name for cls in found if cls.name not in bases]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ExportError(
            "it has no class with get_eager_model() and get_example_inputs()",
            f"write one (`sme2 onboard NAME` makes a template), or say what builds the model: {_EXAMPLE}; "
            "the name of a helper file must begin with _",
        )
    raise ExportError(
        f"it has {len(names)} classes that could be the model: {', '.join(names)}",
        f"say which, or declare several: MODEL = [{{'name': ..., 'factory': {names[0]!r}}}, ...]",
    )


def _signature(module: ast.Module, factory: str) -> Signature:
    known = _definitions(module)
    definition = known.get(factory)
    if definition is None:
        if factory not in _names_at_top(module):
            raise ExportError(
                f"there is no {factory!r} in the file", f"name a class or function of it: {_EXAMPLE}"
            )
        return Signature("", None)
    description = (ast.get_docstring(definition) or "").partition("\n")[0].rstrip(".")
    constants = _constants(module)
    if isinstance(definition, ast.FunctionDef):
        return Signature(description, _options(definition, constants, skip=0))
    for ancestor in _lineage(definition, known):
        if any(_last_name(decorator) == "dataclass" for decorator in ancestor.decorator_list):
            return Signature(description, _fields(ancestor, constants))
        for node in ancestor.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return Signature(description, _options(node, constants, skip=1))
    return Signature(description, ())


def _names_at_top(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _constants(module: ast.Module) -> _Constants:
    """Top-level names with a plain value: defaults often refer to one."""
    found: _Constants = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            value = _simple_value(node.value)
            if value is not None:
                found |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
    return found


def _simple_value(node: ast.expr | None) -> OptionValue | None:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, RecursionError):
        return None
    return value if isinstance(value, int | float | str) else None


def _options(function: ast.FunctionDef, constants: _Constants, *, skip: int) -> tuple[ModelOption, ...]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args][skip:]
    defaults = [*arguments.defaults[-len(positional) :]] if positional else []
    without: list[ast.expr | None] = [None] * (len(positional) - len(defaults))
    pairs = [
        *zip(positional, [*without, *defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    required = [argument.arg for argument, default in pairs if default is None]
    if required:
        raise ExportError(
            f"{function.name}() in line {function.lineno} cannot be called without {required[0]!r}",
            "give every argument a default: it is what the model is without options",
        )
    return tuple(
        _option(argument.arg, argument.annotation, default, constants) for argument, default in pairs
    )


def _fields(cls: ast.ClassDef, constants: _Constants) -> tuple[ModelOption, ...]:
    options = []
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.value is None:
            raise ExportError(
                f"{cls.name}() cannot be called without {node.target.id!r}",
                "give every field a default: it is what the model is without options",
            )
        options.append(_option(node.target.id, node.annotation, node.value, constants))
    return tuple(options)


def _option(
    name: str, annotation: ast.expr | None, default: ast.expr | None, constants: _Constants
) -> ModelOption:
    value = constants.get(default.id) if isinstance(default, ast.Name) else _simple_value(default)
    if value is not None:
        return ModelOption(name, type(value).__name__, value)
    # `str | None = None` and the like: the annotation's first known name.
    names = [_last_name(node) for node in ast.walk(annotation)] if annotation is not None else []
    kinds = [kind for kind in names if kind in _KINDS]
    kind = kinds[0] if kinds else "str" if "Path" in names else None
    return ModelOption(name, kind, None)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
