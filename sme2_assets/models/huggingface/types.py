"""The model types that the installed transformers registers, read from its files without importing it.

Importing transformers' registry imports torch, which listing models must not do. The registry is literal
data and the constructors are plain assignments, so both are parsed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

# Heads in order of preference, by the names of transformers' own tables.
_TASKS = ("MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_CAUSAL_LM", "MODEL")
PREFILL, DECODE, WHOLE = "prefill", "decode", "whole"
# Attributes that count as parts if a model has several, although they are plain modules.
_PLAIN_PARTS = ("backbone", "encoder", "decoder")
_FROM_CONFIG = ("from_config", "_from_config", "load_backbone")


@dataclass(frozen=True)
class ModelType:
    """A model type: the class that builds it, and the parts it is made of."""

    name: str
    class_name: str | None
    """None if transformers registers a configuration but no model."""
    parts: tuple[str, ...]
    is_classifier: bool


def package_folder() -> Path | None:
    """Where transformers is installed; None if it is not."""
    found = importlib.util.find_spec("transformers")
    return Path(found.origin).parent if found is not None and found.origin else None


@functools.cache
def type_names() -> tuple[str, ...]:
    """Every model type with a configuration."""
    folder = package_folder()
    if folder is None:
        return ()
    return tuple(dict.fromkeys(_tables(folder / "models/auto/auto_mappings.py")["CONFIG_MAPPING_NAMES"]))


@functools.cache
def model_type(name: str) -> ModelType:
    """What is registered for a type."""
    folder = package_folder()
    assert folder is not None
    tables = _tables(folder / "models/auto/modeling_auto.py")
    base = tables["MODEL_MAPPING_NAMES"].get(name)
    parts = _parts(_modeling_file(folder, name), base or class_of(name) or "")
    # A model of several parts that also registers a head for one of them is known by its parts.
    if parts:
        return ModelType(name, base or class_of(name), parts, is_classifier=False)
    phases = (PREFILL, DECODE) if _is_causal(tables, name) else ()
    classifier = name in tables["MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"]
    return ModelType(name, class_of(name), phases, classifier)


def class_of(name: str) -> str | None:
    """The class that is registered for a type, with a preferred head if there is one."""
    folder = package_folder()
    assert folder is not None
    tables = _tables(folder / "models/auto/modeling_auto.py")
    tasks = [task for task in _TASKS if task != "MODEL_FOR_CAUSAL_LM" or _is_causal(tables, name)]
    preferred = [tables[f"{task}_MAPPING_NAMES"].get(name) for task in tasks]
    others = [table.get(name) for table_name, table in tables.items() if table_name.startswith("MODEL")]
    return next((found for found in [*preferred, *others] if found), None)


def _is_causal(tables: dict[str, dict[str, str]], name: str) -> bool:
    """Whether it reads a prompt and then adds one token after another."""
    masked = name in tables["MODEL_FOR_MASKED_LM_MAPPING_NAMES"]
    return name in tables["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"] and not masked


@functools.cache
def _tables(path: Path) -> dict[str, dict[str, str]]:
    """The tables `NAME = OrderedDict([(type, class), ...])` in a file; if several classes, the first."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args):
            continue
        try:
            pairs = dict(ast.literal_eval(node.value.args[0]))
        except (ValueError, TypeError):
            continue
        first = {key: value[0] if isinstance(value, tuple) else value for key, value in pairs.items()}
        table = {key: value for key, value in first.items() if isinstance(value, str)}
        found |= {target.id: table for target in node.targets if isinstance(target, ast.Name)}
    return found


def _modeling_file(folder: Path, name: str) -> Path:
    special = _tables(folder / "models/auto/auto_mappings.py").get("SPECIAL_MODEL_TYPE_TO_MODULE_NAME", {})
    module = special.get(name, name.replace("-", "_"))
    return folder / "models" / module / f"modeling_{module}.py"


def _parts(path: Path, class_name: str) -> tuple[str, ...]:
    """The attributes of a model that are models themselves; none if there are fewer than two."""
    if not path.is_file():
        return ()
    classes = {
        node.name: node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    models: list[str] = []
    plain: list[str] = []
    for attribute, call in _assignments(classes, class_name):
        if call.rpartition(".")[2] in _FROM_CONFIG or _is_model(classes, call):
            models.append(attribute)
        elif attribute in _PLAIN_PARTS:
            plain.append(attribute)
    found = dict.fromkeys([*models, *(plain if models else ())])
    return tuple(found) if len(found) > 1 else ()


def _assignments(classes: dict[str, ast.ClassDef], class_name: str) -> list[tuple[str, str]]:
    """`self.attribute = callee(...)` in a class's constructor, or in its base's if it has none."""
    cls = classes.get(class_name)
    if cls is None:
        return []
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return [
                (target.attr, ast.unparse(statement.value.func))
                for statement in ast.walk(node)
                if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
                for target in statement.targets
                if isinstance(target, ast.Attribute)
            ]
    return [found for base in cls.bases for found in _assignments(classes, ast.unparse(base))]


def _is_model(classes: dict[str, ast.ClassDef], class_name: str) -> bool:
    cls = classes.get(class_name)
    if cls is None:
        return False
    bases = [ast.unparse(base) for base in cls.bases]
    return any(base.endswith("PreTrainedModel") or _is_model(classes, base) for base in bases)
