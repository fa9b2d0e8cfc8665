"""A report before it is Markdown or HTML: what it says, in which order.

Belongs here: the kinds of things a report is made of. All text is plain, with commands between backquotes:
report/markdown.py and report/html.py decide what it looks like, and make sure that nothing in it becomes
markup.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sme2_assets.report.tables import TextTable

Tone = Literal["good", "bad", "same", "open", "emulated"]


@dataclass(frozen=True)
class Text:
    """A paragraph; a note is one to be read with care."""

    text: str
    note: bool = False


@dataclass(frozen=True)
class Grid:
    """A table. A long one can be sorted and filtered where the page can do that."""

    table: TextTable
    long: bool = False
    # Where the first cell of each row links to; None: nowhere.
    links: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A picture: its file name without extension, its title, what it shows, the same for people who cannot
    see it, and how it is drawn: a specification for Vega or Vega-Lite."""

    name: str
    title: str
    caption: str
    alternative: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """A numbered conclusion with what belongs to it, each under a label."""

    number: int
    title: str
    detail: str
    points: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Commands:
    """Commands for a terminal."""

    lines: tuple[str, ...]


Block = Text | Grid | Picture | Finding | Commands


@dataclass(frozen=True)
class Section:
    """A part of a report; a folded one stays closed until the reader opens it."""

    title: str
    blocks: list[Block]
    folded: bool = False

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().split())


@dataclass(frozen=True)
class Action:
    """Something to do: what was found, what it can gain at most (empty: unknown), and how."""

    what: str
    gain: str
    next: str


@dataclass(frozen=True)
class Answer:
    """What is said first: a word for what it is, the answer in one sentence, why, and what to do.

    `figure` is its number, if it has one.
    """

    word: str
    tone: Tone
    sentence: str
    why: str = ""
    figure: str | None = None
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Document:
    title: str
    answer: Answer | None
    sections: list[Section] = field(default_factory=list)
    # What it was made from: a page with another stamp is out of date.
    stamp: str = ""

    def pictures(self) -> list[Picture]:
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]
