"""Text that wants to be markup, and what a page or a Markdown file is made of when its text is left out."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import strategies as st
from markdown_it import MarkdownIt

FRAGMENTS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></tr></table>",
    "</style><style>",
    "<!--",
    "-->",
    "{{ 7*7 }}",
    "{% raw %}",
    "&lt;b&gt;",
    "[a](javascript:alert(1))",
    "![a](http://example.org/a.png)",
    "<http://example.org>",
    "`code`",
    "**bold**",
    "__init__",
    "~~gone~~",
    "a | b",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "---",
    "$x_1$",
    "\\",
    "```",
    "\n\n",
)
hostile_text = (
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), min_size=1, max_size=4)
    .map("".join)
    # An empty paragraph or cell is none.
    .filter(lambda text: text.strip() and text.split())
)


class _Skeleton(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        for name, value in attrs:
            if name in ("href", "src", "srcset", "xlink:href", "action", "data", "poster", "background"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", ()))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", ()))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> _Skeleton:
    """The page as a browser would take it: its tags with the names of their attributes, links, ids, text."""
    parser = _Skeleton()
    parser.feed(page)
    parser.close()
    return parser


def markdown_skeleton(text: str) -> list[str]:
    """The kinds of things in a Markdown text, as a renderer that lets HTML through finds them."""
    kinds = []
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        kinds.append(token.type)
        kinds += [child.type for child in token.children or [] if child.type not in ("text", "text_special")]
    return kinds
