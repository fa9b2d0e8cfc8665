"""From the recording of a kernels pass to its samples file.

The runner records where every thread was: module and address. The function is not looked up in the measured
process but here, in the very files that ran. The resulting samples file is self-contained; the recording and
the files are not needed to read it.

A file matches a module if it has the recorded build id and contains every recorded instruction. Without such
a file, as for the C library of a phone, samples keep module and address but have no name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Self

from pydantic import Field, StrictStr, model_validator

from sme2_assets.evidence.documents import Count, Part
from sme2_assets.evidence.samples import Function, SampleColumns, SamplerDocument, SamplesFile, Word
from sme2_assets.runner.symbols import BinaryImage, image_of, read_image

Log = Callable[[str], None]
# The number of its module, if it is in one; the address in that module; the instruction there, if known.
Place = tuple[int | None, int, int | None]


class Module(Part):
    """A program or library that was loaded into a process."""

    path: StrictStr
    build_id: StrictStr | None
    image: Annotated[StrictStr, Field(pattern=r"^([0-9a-f]{2})*$")] | None
    """Its bytes, if it is not in a file: what the kernel maps into every process."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


class _Places(Part):
    """Of equal length, one entry per distinct program counter."""

    module: list[Count | None]
    address: list[Count]
    word: list[Word | None]


class _Columns(Part):
    """Of equal length, one entry per sample."""

    time_ns: list[Count]
    thread: list[Count]
    place: list[Count]


class _Recording(SamplerDocument):
    modules: tuple[Module, ...]
    places: _Places
    samples: _Columns

    @model_validator(mode="after")
    def _indices_fit(self) -> Self:
        places, samples = self.places, self.samples
        if not len(places.module) == len(places.address) == len(places.word):
            raise ValueError("the columns of places are not of one length")
        if not len(samples.time_ns) == len(samples.thread) == len(samples.place):
            raise ValueError("the columns of samples are not of one length")
        if max((module for module in places.module if module is not None), default=-1) >= len(self.modules):
            raise ValueError("a place is in a module that is not listed")
        if max(samples.place, default=-1) >= len(places.address):
            raise ValueError("a sample is at a place that is not listed")
        return self


def write_samples(recording: Path, samples: Path, folders: Iterable[Path], log: Log = lambda _: None) -> None:
    """Writes the samples file of a recording.

    A module is looked for at its own path, and by name in `folders`: it may have run on another machine.
    """
    named = _named(_Recording.read(recording), list(folders), log)
    # On one line: an indented column would have a line for each sample.
    content = json.dumps({"schema": named.VERSION, **named.as_json()})
    samples.write_text(content + "\n", encoding="utf-8")


def _named(recording: _Recording, folders: Sequence[Path], log: Log) -> SamplesFile:
    samples, at = recording.samples, recording.places
    places = list(zip(at.module, at.address, at.word, strict=True))
    functions, function_of_place = functions_of_places(recording.modules, places, folders, log)
    return SamplesFile(
        **{name: getattr(recording, name) for name in SamplerDocument.model_fields},
        functions=functions,
        samples=SampleColumns(
            time_ns=samples.time_ns,
            thread=samples.thread,
            function=[function_of_place[place] for place in samples.place],
            address=[at.address[place] for place in samples.place],
            word=[at.word[place] for place in samples.place],
        ),
    )


def functions_of_places(
    modules: Sequence[Module], places: Sequence[Place], folders: Sequence[Path], log: Log
) -> tuple[tuple[Function, ...], list[int]]:
    """The functions that places are in, and the number of each place's function.

    A module is looked for at its own path, and by name in `folders`.
    """
    images = {
        index: _image_of(modules[index], [(a, w) for m, a, w in places if m == index], folders, log)
        for index in {module for module, _, _ in places if module is not None}
    }
    functions: dict[tuple[str | None, int, str | None], int] = {}
    function_of_place: list[int] = []
    for module, address, _ in places:
        image = None if module is None else images[module]
        start, symbol = (address, None) if image is None else image.function_at(address)
        function = (None if module is None else modules[module].name, start, symbol)
        function_of_place.append(functions.setdefault(function, len(functions)))
    named = tuple(
        Function(library=library, offset=offset, symbol=symbol) for library, offset, symbol in functions
    )
    return named, function_of_place


def _image_of(
    module: Module, words: Sequence[tuple[int, int | None]], folders: Sequence[Path], log: Log
) -> BinaryImage | None:
    """The functions of the module; None if the file that ran is not here."""
    own = [Path(module.path)] if module.path.startswith("/") else []
    files = [path for path in (*own, *(folder / module.name for folder in folders)) if path.is_file()]
    for source in files if module.image is None else [bytes.fromhex(module.image)]:
        try:
            image = image_of(source) if isinstance(source, bytes) else read_image(source)
            if image.build_id == module.build_id and all(
                word is None or image.word_at(address) == word for address, word in words
            ):
                for address, _ in words:
                    image.function_at(address)  # a damaged table shows here
                return image
        except (OSError, ValueError) as error:
            log(f"{module.name}: the names of its functions cannot be read: {error}")
    if own:
        log(f"functions of {module.name} have no names: the file that ran is not on this machine")
    return None
