"""Which traces are at or below a path, and which ones should be there but are not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.errors import printable
from sme2_assets.evidence.manifest import MANIFEST_FILE as RUN_MANIFEST
from sme2_assets.exchange.kit import KIT_MANIFEST, json_of, kit_results, promised_files
from sme2_assets.exchange.trace_facts import STATE

# How much of a name that somebody else wrote a message shows, in characters.
_LONGEST_NAME = 300


@dataclass(frozen=True)
class FoundTrace:
    """A trace that was found, and the path that was searched."""

    path: Path
    given: Path

    @property
    def source(self) -> str:
        """How it is shown to people: relative to what they gave, and without terminal control characters."""
        inside = self.path.relative_to(self.given.parent) if self.given != self.path else Path(self.path.name)
        return printable(str(inside))


@dataclass(frozen=True)
class RefusedTrace:
    """A file or folder that was not accepted, and why."""

    source: str
    what: str
    remedy: str | None = None


def traces_below(path: Path) -> tuple[list[FoundTrace], list[RefusedTrace]]:
    given = path.absolute()
    if not os.path.lexists(given):
        return [], [RefusedTrace(printable(str(path)), "There is no such file or folder.", "Check the path.")]
    if not given.is_dir():
        return [FoundTrace(given, given)], []
    found: list[FoundTrace] = []
    problems: list[RefusedTrace] = []
    for folder, subfolders, names in os.walk(given):
        subfolders.sort()
        here = Path(folder)
        if (here / RUN_MANIFEST).is_file() and _is_own_run(here):
            problems.append(
                RefusedTrace(
                    printable(str(here.name)),
                    "This is a run of `sme2 profile`, not one of another tool.",
                    "Its rows are already in the warehouse of its data folder; give a single .etdump file "
                    "of it to ingest that as foreign.",
                )
            )
            subfolders.clear()
            continue
        traces = sorted(name for name in names if name.endswith(".etdump"))
        found += [FoundTrace(here / name, given) for name in traces]
        problems += _promised_but_missing(here, given)
        if not traces and not subfolders and _looks_like_an_experiment(here, names):
            problems.append(
                RefusedTrace(
                    printable(str(here.relative_to(given.parent))),
                    "The experiment has no .etdump file.",
                    "Look at its log: the runner failed, or was built without the event tracer.",
                )
            )
    if not found and not problems:
        problems.append(
            RefusedTrace(
                printable(str(path)), "No .etdump file is below this folder.", "Give the kit's run folder."
            )
        )
    return found, problems


def _is_own_run(folder: Path) -> bool:
    document = json_of(folder / RUN_MANIFEST)
    return isinstance(document, dict) and "run_id" in document and "identity" in document


def _looks_like_an_experiment(folder: Path, names: Sequence[str]) -> bool:
    """A folder that names an SME2 state and has a runner's log: the kit's, from a run that gave no trace."""
    logs = [name for name in names if name.endswith(".log") and not name.endswith("_xnntrace.log")]
    return bool(logs) and STATE.search(folder.name) is not None


def _promised_but_missing(folder: Path, given: Path) -> Iterator[RefusedTrace]:
    """Traces that the kit's manifest names but that are not there; and a manifest that cannot be read."""
    path = folder / KIT_MANIFEST
    if not path.is_file():
        return
    document = json_of(path)
    if document is None:
        yield RefusedTrace(
            printable(str(path.relative_to(given.parent))),
            "It is not a JSON document.",
            "The traces are read without it: say what their names do not, with the options.",
        )
        return
    for result in kit_results(document):
        name = promised_files(result).get("etdump")
        if name is not None and not _is_file(folder / name):
            yield RefusedTrace(
                printable(str(path.relative_to(given.parent))),
                f"It names a trace that is not there: {printable(name)[:_LONGEST_NAME]}.",
                "Copy it too, or measure again.",
            )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name longer than any file can have.
        return False
