"""A report as Markdown, with its pictures as files next to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

from sme2_assets.report.document import (
    Action,
    Answer,
    Block,
    Commands,
    Document,
    Finding,
    Grid,
    Picture,
    Section,
    Text,
)
from sme2_assets.report.pictures.chart import drawn_document, svg
from sme2_assets.report.tables import markdown_paragraph, markdown_text, markdown_with_commands


@dataclass(frozen=True)
class MarkdownReport:
    """A report: text, and the pictures it refers to by their file names."""

    text: str
    pictures: dict[str, bytes]


def markdown_report(document: Document) -> MarkdownReport:
    """The text, and every picture that can be drawn as an SVG."""
    document, drawings = drawn_document(document, svg)
    pictures = {f"{name}.svg": drawing.encode() for name, drawing in drawings.items()}
    return MarkdownReport(markdown_of(document), pictures)


def markdown_of(document: Document) -> str:
    parts = [f"# {markdown_text(document.title)}"]
    if document.answer is not None:
        parts += _answer(document.answer)
    parts += [section_markdown(section) for section in document.sections]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def section_markdown(section: Section, heading: str = "##") -> str:
    parts = [f"{heading} {markdown_text(section.title)}", *(_block(block) for block in section.blocks)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _answer(answer: Answer) -> list[str]:
    parts = [f"**{markdown_text(answer.word.capitalize())}.** {markdown_text(answer.sentence)}"]
    if answer.why:
        parts.append(markdown_paragraph(answer.why))
    if answer.actions:
        parts += ["What to do:", actions_markdown(answer.actions)]
    return parts


def actions_markdown(actions: Sequence[Action]) -> str:
    """A numbered list: what, what it could gain, and what to do about it."""
    return "\n".join(
        f"{number}. **{markdown_text(it.what)}**"
        + (f" ({markdown_text(it.gain)})" if it.gain else "")
        + f": {markdown_with_commands(it.next)}"
        for number, it in enumerate(actions, 1)
    )


@singledispatch
def _block(block: Block) -> str:
    raise TypeError(type(block))


@_block.register
def _(block: Text) -> str:
    text = markdown_paragraph(block.text)
    return f"> {text}" if block.note else text


@_block.register
def _(block: Grid) -> str:
    if not block.links:
        return block.table.markdown()
    # The first column links to the pages; its cells are already escaped.
    lines = block.table.markdown().splitlines()
    for number, link in enumerate(block.links, start=2):
        if link is not None:
            lines[number] = re.sub(r"^\| (.*?) \|", lambda cell: f"| [{cell[1]}]({link}) |", lines[number])  # noqa: B023
    return "\n".join(lines)


@_block.register
def _(block: Picture) -> str:
    title, caption, alternative = map(markdown_text, (block.title, block.caption, block.alternative))
    return f"**{title}**\n\n![{alternative}]({block.name}.svg)\n\n{caption}"


@_block.register
def _(block: Finding) -> str:
    lines = [f"**{block.number}. {markdown_text(block.title)}.** {markdown_text(block.detail)}"]
    return "\n".join(
        [*lines, *(f"- {label}: {markdown_with_commands(text)}" for label, text in block.points)]
    )


@_block.register
def _(block: Commands) -> str:
    return "\n".join(["```text", *(line.replace("`", "'") for line in block.lines), "```"])
