"""JSON documents with a version: read, brought up to date, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError
from pydantic_core import from_json

from sme2_assets.errors import EvidenceError, Sme2Error
from sme2_assets.evidence.regular import content_of
from sme2_assets.store import safe_name

LARGEST_FILE_BYTES = 1 << 30
# Larger integers would fail much later, in the warehouse, which has 64 bits; this leaves room, so that no
# difference of two values overflows either.
LARGEST_INTEGER = (1 << 62) - 1
# More sessions than anybody will measure. No number of a session is larger, so that one from elsewhere cannot
# use up those that are left for the sessions to come.
LARGEST_SEQUENCE = 10**12


def _plain_file_name(text: str) -> str:
    if PurePosixPath(text).name != text:
        raise ValueError("is not a plain file name")
    return text


def _relative(text: str) -> str:
    if PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute():
        raise ValueError("is an absolute path")
    return text


def _inside(text: str) -> str:
    if ".." in PurePosixPath(text).parts:
        raise ValueError("leads out of the run folder")
    return _relative(text)


def _name(text: str) -> str:
    try:
        return safe_name(text)
    except Sme2Error as error:
        raise ValueError(error.what.rstrip(".")) from None


def _time(text: str) -> str:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("has no time zone")
    # What reads tables as nanoseconds since 1970 ends in 2262: one later time would end every query.
    if not 1970 <= at.year < 2200:
        raise ValueError("is not a time at which anybody measured")
    return text


Text = Annotated[StrictStr, Field(min_length=1)]
Flag = StrictBool
Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)]
Sequence = Annotated[int, Field(strict=True, ge=0, le=LARGEST_SEQUENCE)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Of a run or a session: it becomes a part of paths and of patterns.
Name = Annotated[Text, AfterValidator(_name)]
Time = Annotated[Text, AfterValidator(_time)]
FileName = Annotated[Text, AfterValidator(_plain_file_name)]
RelativePath = Annotated[StrictStr, AfterValidator(_relative)]
PathInside = Annotated[Text, AfterValidator(_inside)]
# Turns one version of a document into the next.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class Part(BaseModel):
    """A part of a document: it cannot be changed, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


class Document(Part):
    """A whole file. `schema` in it is the version of its format."""

    VERSION: ClassVar[int]
    #: The step from version n to n + 1. A version without an entry was never written.
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {}
    #: What to do about a file of this kind that cannot be read.
    REMEDY: ClassVar[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The document in that file; anything but a complete one of a known version is an error."""
        try:
            raw = content_of(path, LARGEST_FILE_BYTES, cls.REMEDY)
        except FileNotFoundError:
            raise EvidenceError(f"{path} is missing.", cls.REMEDY) from None
        except PermissionError as error:
            raise EvidenceError(f"You may not read {path}.", "Check who owns it.") from error
        except OSError as error:
            raise EvidenceError(f"{path} cannot be read: {error.strerror}.", cls.REMEDY) from error
        return cls.parse(raw, str(path))

    @classmethod
    def parse(cls, raw: bytes | str, source: str) -> Self:
        try:
            content = from_json(raw, allow_inf_nan=False)
        except ValueError as error:
            raise EvidenceError(f"{source} is not a JSON document: {error}.", cls.REMEDY) from error
        return cls.of(content, source)

    @classmethod
    def of(cls, content: Any, source: str) -> Self:
        """The document from parsed JSON, of any known version."""
        version = content.get("schema") if isinstance(content, dict) else None
        if type(version) is int and version > cls.VERSION:
            raise EvidenceError(
                f"{source} has version {version} of its format; this release reads up to {cls.VERSION}.",
                "Update sme2_assets.",
            )
        if type(version) is not int or not (version == cls.VERSION or version in cls.UPGRADES):
            raise EvidenceError(f"{source} is not valid: schema is {version!r}.", cls.REMEDY)
        fields = {name: value for name, value in content.items() if name != "schema"}
        try:
            for earlier in range(version, cls.VERSION):
                fields = cls.UPGRADES[earlier](fields)
            return cls.model_validate(fields)
        except (ValidationError, KeyError, TypeError, AttributeError) as error:
            raise EvidenceError(f"{source} is not valid: {first_fault(error)}.", cls.REMEDY) from error

    def to_json(self) -> str:
        """Strict JSON: NaN and infinity are defects of the caller, not values."""
        content = {"schema": self.VERSION, **self.as_json()}
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"


def first_fault(error: Exception) -> str:
    """The first thing that is wrong, in a few words."""
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        said = fault["msg"].removeprefix("Value error, ")
        return f"{where}: {said}" if where else said
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
