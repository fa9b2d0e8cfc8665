"""Which module and which line of the model asked for a node of its graph.

torch.export notes both on every node. Paths are given as Python would import them: the folders of one
machine mean nothing on another.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_LIBRARIES = ("torch", "torchao", "executorch")


@dataclass(frozen=True)
class Origin:
    """Where in the model something comes from; None for each part that is not known."""

    module: str | None = None
    """Path of the module, such as `features.3.conv`; empty for the model itself."""
    module_type: str | None = None
    source: str | None = None
    """File and line, such as `models/net.py:41`."""
    code: str | None = None

    def __str__(self) -> str:
        parts = []
        if self.module is not None:
            kind = f" ({self.module_type})" if self.module_type else ""
            parts.append(f"module {self.module!r}{kind}" if self.module else f"the model itself{kind}")
        if self.source:
            parts.append(f"line {self.source}" + (f": {self.code}" if self.code else ""))
        return ", ".join(parts)


def origin_of(node: Any) -> Origin:
    """The module and line of a node of an exported graph."""
    module, module_type = _module_of(node)
    return Origin(module, module_type, *_line_of(node.meta.get("stack_trace")))


def operator_name(node: Any) -> str | None:
    """`aten.convolution.default` for an operator; None for structure only (getitem, inputs)."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return None
    namespace, _, operator = schema.name.partition("::")
    return f"{namespace}.{operator}.{schema.overload_name or 'default'}"


def names_in(node: Any, graph: Any) -> set[str]:
    """The nodes of an earlier graph that a node comes from, by name."""
    names, sources = set(), [*node.meta.get("from_node", [])]
    while sources:
        source = sources.pop()
        if source.graph_id == id(graph):
            names.add(source.name)
        else:
            sources += source.from_node
    return names


def is_library(file: str) -> bool:
    """Whether a file belongs to torch or a related library; the example models inside ExecuTorch do not."""
    parts = Path(short_path(file)).parts
    return parts[0] in _LIBRARIES and parts[:3] != ("executorch", "examples", "models")


@lru_cache(maxsize=4096)
def short_path(file: str) -> str:
    """The file's path within its package or site folder; its name alone if it is in neither."""
    path = Path(file)
    if not path.is_absolute():
        return path.name if ".." in path.parts else path.as_posix()
    for index, part in enumerate(path.parts):
        if part in ("site-packages", "dist-packages"):
            return Path(*path.parts[index + 1 :]).as_posix()
    root = path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return path.relative_to(root).as_posix()


def _module_of(node: Any) -> tuple[str | None, str | None]:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None, None
    path, kind = list(stack.values())[-1][:2]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    # Made by torch.export, not modules of the model: its wrapper around the model, its size checks.
    if path == "_empty_nn_module_stack_from_metadata_hook" or name.startswith("torch.export."):
        return None, None
    return path, name.rpartition(".")[2]


def _line_of(stack_trace: str | None) -> tuple[str | None, str | None]:
    """The innermost line that is not torch's own: the one in the model's code. None if all are torch's."""
    frames = [frame for frame in _frames(stack_trace or "") if not is_library(frame[0])]
    if not frames:
        return None, None
    file, line = frames[-1]
    return f"{short_path(file)}:{line}", linecache.getline(file, line).strip() or None


def _frames(stack_trace: str) -> Iterator[tuple[str, int]]:
    for found in _FRAME.finditer(stack_trace):
        yield found["file"], int(found["line"])
