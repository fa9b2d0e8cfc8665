"""YAML and JSON files as plain data: mappings, lists, texts, numbers, true, false, null. Nothing else.

Belongs here: turning bytes into data, with the line of every key. Does not: what the data mean (schema).

A file from outside is not trusted. The YAML parser is used only up to its tree of nodes; nothing in a
file can name a type to be built. Words are taken literally, as in YAML 1.2: `off` is a text and not false, a
date is a text, `0xf0` is a text. Anchors and aliases are refused, so a small file stays small.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sme2_assets.errors import Sme2Error
from sme2_assets.written.problems import Place, place_text, value_text

# Every file a person writes is far smaller.
MOST_BYTES = 256 * 1024
DEEPEST = 12
_SUFFIXES = (".yaml", ".yml", ".json")
_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Kind:
    """What people call a file, and what helps who has a broken or an empty one."""

    name: str
    remedy: str
    when_empty: str


@dataclass(frozen=True)
class Document:
    """The data in a file, and the line of each key."""

    data: dict[str, Any]
    lines: Mapping[Place, int] = field(default_factory=dict)


def read_document(path: Path, kind: Kind) -> Document:
    """The document in a `.yaml`, `.yml` or `.json` file; an error names the line that is not valid."""
    if path.suffix.lower() not in _SUFFIXES:
        raise Sme2Error(
            f"{path.name} is neither YAML nor JSON by its name.", f"Name it *{', *'.join(_SUFFIXES)}."
        )
    text = _text_of(path, kind)
    try:
        document = _json(text, path.name) if path.suffix.lower() == ".json" else _yaml(text, path.name)
    except Sme2Error as error:
        raise Sme2Error(error.what, error.remedy or kind.remedy) from None
    if not document.data:
        raise Sme2Error(f"{path.name} is empty.", kind.when_empty)
    return document


def _text_of(path: Path, kind: Kind) -> str:
    try:
        # O_NONBLOCK: do not wait for a writer of a pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise Sme2Error(f"{path} is not a regular file.", "Give a file.")
            content = handle.read(MOST_BYTES + 1)
    except OSError as error:
        raise Sme2Error(f"{path} cannot be read: {error.strerror}.", "Check the path of the file.") from None
    if len(content) > MOST_BYTES:
        raise Sme2Error(
            f"{path.name} is larger than {MOST_BYTES // 1024} KiB: that is not {kind.name}.",
            "Give the right file.",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Sme2Error(
            f"{path.name} is not text in UTF-8: see byte {error.start}.", "Save it as UTF-8."
        ) from None


def _json(text: str, name: str) -> Document:
    def constant(word: str) -> Any:
        raise Sme2Error(f"{name}: {word} is not a number in JSON.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise Sme2Error(f"{name}: the key {value_text(key)} appears twice.", "Leave one of them.")
            found[key] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_float=_finite(name))
    except json.JSONDecodeError as error:
        raise Sme2Error(f"{name}, line {error.lineno}: this is not JSON: {error.msg}.") from None
    except RecursionError:
        raise Sme2Error(f"{name} is nested too deeply.") from None
    except ValueError:
        raise Sme2Error(f"{name} has a number with far too many digits.") from None
    return Document(_mapping(data, name))


def _finite(name: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise Sme2Error(f"{name}: {text[:20]} is too large for a number.")
        return value

    return read


def _mapping(data: Any, name: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Sme2Error(f"{name} is not a mapping of keys to values, but {value_text(data)}.")
    return data


class _Loader(yaml.SafeLoader):
    """Only PyYAML's parser and composer are used; no object is ever constructed from a node."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Refused(line, "anchors (&) and aliases (*) are not used here: write it out")
        if getattr(event, "tag", None):
            raise _Refused(line, f"the tag {event.tag!r} is not used here: leave it out")
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Refused(line, "this is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        assert node is not None
        return node


class _Refused(Exception):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


# The scalars of YAML 1.2's core schema that an experiment can use.
_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"~|null|", ["~", "n", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(_PREFIX + _kind, re.compile(rf"^(?:{_pattern})$"), list(_first))


class Dumper(yaml.SafeDumper):
    """Writes what is read here: a text that would be read as a number, such as `0E0`, is quoted."""


for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _tag, _regexp in _resolvers:
        Dumper.add_implicit_resolver(_tag, _regexp, [_first])


def _yaml(text: str, name: str) -> Document:
    lines: dict[Place, int] = {}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        data = None if node is None else _value(node, (), lines)
    except _Refused as error:
        raise Sme2Error(f"{name}, line {error.line}: {error}.") from None
    except yaml.MarkedYAMLError as error:
        raise _no_yaml(error, name) from None
    except yaml.YAMLError as error:
        raise Sme2Error(
            f"{name} has a character that text files cannot have: {str(error).splitlines()[0]}."
        ) from None
    return Document({} if data is None else _mapping(data, name), lines)


def _no_yaml(error: yaml.MarkedYAMLError, name: str) -> Sme2Error:
    mark = error.problem_mark or error.context_mark
    line = f", line {mark.line + 1}" if mark is not None else ""
    what = str(error.problem or error.context)
    if "'\\t'" in what:
        return Sme2Error(f"{name}{line}: YAML cannot be indented with tabs.", "Indent with spaces.")
    if "expected a single document" in str(error.context):
        return Sme2Error(f"{name}{line}: a second document begins here.", "Leave one document in the file.")
    return Sme2Error(f"{name}{line}: this is not YAML: {what}.")


def _value(node: yaml.Node, place: Place, lines: dict[Place, int]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return dict(_items(node, place, lines))
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(item, _noted((*place, index), item, lines), lines) for index, item in enumerate(node.value)
        ]
    return _scalar(node)


def _noted(place: Place, node: yaml.Node, lines: dict[Place, int]) -> Place:
    lines[place] = node.start_mark.line + 1
    return place


def _items(node: yaml.MappingNode, place: Place, lines: dict[Place, int]) -> Iterator[tuple[str, Any]]:
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise _Refused(line, "a key is a word")
        inner = (*place, key_node.value)
        if inner in lines:
            raise _Refused(line, f"the key {place_text(inner)!r} appears twice, first on line {lines[inner]}")
        yield key_node.value, _value(value_node, _noted(inner, key_node, lines), lines)


def _scalar(node: yaml.Node) -> Any:
    text = node.value
    kind = node.tag.removeprefix(_PREFIX)
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            value = float(text)
            if math.isinf(value):
                raise ValueError(text)
            return value
    except ValueError:
        raise _Refused(node.start_mark.line + 1, "this number is too large") from None
    return {"bool": text == "true", "null": None}.get(kind, text)
