"""From the recording of a kernels pass to its samples file.

The runner records where every thread was: module and address. Which function that is, nobody looks up in the
measured process: it is found here, in the very files that ran. The samples file that results is complete in
itself; the recording and the files are not needed to read it.

A file stands for a module if its build id is the recorded one, and each instruction that was recorded is in
it. Without such a file, as for the C library of a phone, samples keep module and address, and have no name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sme2_assets.errors import TraceError
from sme2_assets.runner.symbols import BinaryImage, image_of, read_image

RECORDING_SCHEMA = 1
SAMPLES_SCHEMA = 1
_COPIED = ("arch", "period_ns", "dropped", "missed", "clock", "threads")
_AGAIN = "Run the kernels pass again; if it persists, the runner and this package do not match."

Log = Callable[[str], None]


@dataclass(frozen=True)
class _Module:
    path: str
    build_id: str | None
    image: bytes | None
    """Its bytes, where it is in no file: what the kernel maps into every process."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def write_samples(recording: Path, samples: Path, folders: Iterable[Path], log: Log = lambda _: None) -> None:
    """Writes the samples file of a recording. A recording that cannot be believed is a TraceError.

    A module is looked for at its own path, and by its name in `folders`: where it ran may be another machine.
    """
    try:
        document = json.loads(recording.read_bytes())
        named = _named(document, list(folders), log)
    except OSError as error:
        raise TraceError(f"The recording {recording} cannot be read: {error.strerror}.", _AGAIN) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise TraceError(f"The recording {recording} cannot be believed: {error!r}.", _AGAIN) from error
    samples.write_text(json.dumps(named) + "\n", encoding="utf-8")


def _named(document: dict[str, Any], folders: Sequence[Path], log: Log) -> dict[str, Any]:
    if document["recording"] != RECORDING_SCHEMA:
        raise ValueError(f"recording {document['recording']!r} is not {RECORDING_SCHEMA}")
    modules = [
        _Module(m["path"], m["build_id"], None if m["image"] is None else bytes.fromhex(m["image"]))
        for m in document["modules"]
    ]
    columns = document["places"]
    places: list[tuple[int | None, int, int | None]] = list(
        zip(columns["module"], columns["address"], columns["word"], strict=True)
    )
    samples = document["samples"]
    if min(samples["place"], default=0) < 0 or any(
        module is not None and module < 0 for module, _, _ in places
    ):
        raise ValueError("an index is negative")
    images: dict[int, BinaryImage | None] = {}
    for index in sorted({module for module, _, _ in places if module is not None}):
        words = [(address, word) for module, address, word in places if module == index]
        images[index] = _image_of(modules[index], words, folders, log)

    functions: dict[tuple[str | None, int, str | None], int] = {}
    function_of_place: list[int] = []
    for module, address, _ in places:
        image = None if module is None else images[module]
        start, symbol = (address, None) if image is None else image.function_at(address)
        function = (None if module is None else modules[module].name, start, symbol)
        function_of_place.append(functions.setdefault(function, len(functions)))

    return {
        "schema": SAMPLES_SCHEMA,
        **{key: document[key] for key in _COPIED},
        "functions": [
            {"library": library, "offset": offset, "symbol": symbol} for library, offset, symbol in functions
        ],
        "samples": {
            "time_ns": samples["time_ns"],
            "thread": samples["thread"],
            "function": [function_of_place[place] for place in samples["place"]],
            "address": [places[place][1] for place in samples["place"]],
            "word": [places[place][2] for place in samples["place"]],
        },
    }


def _image_of(
    module: _Module, words: Sequence[tuple[int, int | None]], folders: Sequence[Path], log: Log
) -> BinaryImage | None:
    if module.image is not None:
        return image_of(module.image)
    own = [Path(module.path)] if module.path.startswith("/") else []
    for path in (*own, *(folder / module.name for folder in folders)):
        if not module.name or not path.is_file():
            continue
        try:
            image = read_image(path)
        except (OSError, ValueError) as error:
            log(f"functions of {module.name} have no names by {path}: {error}")
            continue
        if image.build_id == module.build_id and all(
            word is None or image.word_at(address) == word for address, word in words
        ):
            return image
    log(f"functions of {module.name or 'a module'} have no names: the file that ran is not on this machine")
    return None
