"""What is wrong with a file, in words, and where in the file it is.

Belongs here: problems and their texts, those of pydantic included. Does not: what is right (schema).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from sme2_assets.errors import Sme2Error, did_you_mean, printable

# Where something is in a document: keys, and indices of lists.
Place: TypeAlias = tuple[str | int, ...]
Lines: TypeAlias = Mapping[Place, int]

# How much of a wrong value a message shows, in characters.
_LONGEST_VALUE = 60
# Nobody reads more of them at once.
MOST_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    place: Place
    what: str
    remedy: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = ", ".join(
            part
            for part in (place_text(self.place), f"line {self.line}" if self.line is not None else "")
            if part
        )
        text = f"{where}: {self.what}" if where else self.what
        return f"{text} {self.remedy}" if self.remedy else text


class WrittenError(Sme2Error):
    """A file that cannot be used as it is: every problem found, and the page to read."""

    def __init__(self, name: str, problems: Sequence[Problem], page: str) -> None:
        self.problems = tuple(problems[:MOST_PROBLEMS])
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        if len(problems) > MOST_PROBLEMS:
            count = f"more than {MOST_PROBLEMS} problems"
        super().__init__(
            f"{name} has {count}; nothing was measured.\n{listed}",
            f"Correct the file; {page} says what may be in it.",
        )


def place_text(place: Place) -> str:
    """`entries[1].threads`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return printable(text)


def value_text(value: Any) -> str:
    """A value as people write it, cut off if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return printable(text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "...")


def problems_of(
    error: ValidationError, models: Mapping[str, type[BaseModel]], lines: Lines | None = None
) -> list[Problem]:
    """pydantic's findings as problems. `models` maps each key to the model under it ('' for the top)."""
    found: dict[tuple[Place, str], Problem] = {}
    for entry in error.errors(include_url=False):
        place = tuple(entry["loc"])
        what = _words(entry["type"], entry.get("ctx", {}), entry.get("input"), place, models)
        problem = Problem(place, what, None, line_of(place, lines))
        found.setdefault((place, what), problem)
        if len(found) > MOST_PROBLEMS:
            break
    return list(found.values())


def line_of(place: Place, lines: Lines | None) -> int | None:
    """The line of a place, or of what contains it."""
    for end in range(len(place), 0, -1):
        if lines and place[:end] in lines:
            return lines[place[:end]]
    return None


def _words(
    kind: str, context: Mapping[str, Any], value: Any, place: Place, models: Mapping[str, type[BaseModel]]
) -> str:
    if kind == "extra_forbidden":
        return f"there is no such key{_nearest_key(place, models)}."
    if kind == "missing":
        return "is missing."
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        known = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ", ").split(",")]
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        return f"must be one of {', '.join(known)}, not {value_text(value)}{near}."
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {value_text(value)}."
    if kind in _LIMITS:
        return f"must be {_LIMITS[kind](context)}, not {value_text(value)}."
    return f"cannot be {value_text(value)} ({kind.replace('_', ' ')})."


_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "string_unicode": "a text of whole characters",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
}
_LIMITS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda context: f"at least {context['ge']:g}",
    "greater_than": lambda context: f"more than {context['gt']:g}",
    "less_than_equal": lambda context: f"at most {context['le']:g}",
    "too_short": lambda context: "a list that is not empty",
    "too_long": lambda context: f"a list of at most {context['max_length']}",
    "string_too_short": lambda context: "a text that is not empty",
    "string_too_long": lambda context: f"a text of at most {context['max_length']} characters",
}


def _nearest_key(place: Place, models: Mapping[str, type[BaseModel]]) -> str:
    """The key that was probably meant; all keys if none is close."""
    above = next((part for part in reversed(place[:-1]) if isinstance(part, str)), "")
    model = models.get(above)
    if model is None:
        return ""
    known = [field.alias or name for name, field in model.model_fields.items()]
    return did_you_mean(str(place[-1]), known) or f"; the keys are {', '.join(known)}"
