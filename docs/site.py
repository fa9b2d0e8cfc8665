"""The documents as web pages: `make docs` writes them to `site/`, for the disk or any web server.

Belongs here: turning Markdown into pages, with navigation, and links that lead to pages. Does not: text. What
the pages say is in the Markdown files, which code hosts show as well. Nothing is fetched. A link that leads
nowhere is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

CHECKOUT = Path(__file__).resolve().parent.parent
INDEX = CHECKOUT / "docs" / "README.md"
# Sections, each with its title and the pages in it.
Menu = list[tuple[str, list[tuple[str, Path]]]]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --link: light-dark(#0b57d0, #8ab4f8); }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; }
.page { display: grid; grid-template-columns: 16rem minmax(0, 1fr); max-width: 78rem; margin: auto; }
nav { padding: 1.5rem 1rem; border-right: 1px solid var(--line); font-size: .92rem; }
nav h2 { font-size: .8rem; text-transform: uppercase; opacity: .7; margin: 1.2rem 0 .3rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav a { display: block; padding: .15rem .4rem; border-radius: .3rem; text-decoration: none; }
nav a[aria-current] { background: var(--soft); font-weight: 600; }
main { padding: 1rem 2rem 4rem; }
a { color: var(--link); }
h1, h2, h3 { line-height: 1.25; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
pre, code { font: .88em/1.45 ui-monospace, monospace; background: var(--soft); border-radius: .3rem; }
code { padding: .1em .3em; overflow-wrap: anywhere; }
pre { padding: .8rem 1rem; overflow-x: auto; }
pre code { background: none; padding: 0; overflow-wrap: normal; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .93rem; }
th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
img { max-width: 100%; }
@media (max-width: 50rem) {
  .page { display: block; }
  main { padding: 1rem; }
  nav { border: 0; border-top: 1px solid var(--line); }
  .page { display: flex; flex-direction: column-reverse; }
}
"""


def build_site(destination: Path) -> list[Path]:
    """Writes every page that can be reached from the index, and what they show; returns the pages."""
    menu = _menu()
    waiting, sources = [INDEX], {INDEX}
    pages = []
    while waiting:
        source = waiting.pop()
        body, leads_to = _body(source)
        page = destination / _page_of(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_whole(source, body, menu), encoding="utf-8")
        pages.append(page)
        for target in leads_to - sources:
            sources.add(target)
            if target.suffix == ".md":
                waiting.append(target)
            elif target.is_file():
                (destination / target.relative_to(CHECKOUT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target, destination / target.relative_to(CHECKOUT))
    return sorted(pages)


def slugs(headings: list[str]) -> list[str]:
    """The anchors of a page's headings, as code hosts make them, so that links work in both places."""
    times: Counter[str] = Counter()
    made = []
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made.append(f"{slug}-{times[slug]}" if times[slug] else slug)
        times[slug] += 1
    return made


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def _tokens(source: Path) -> list[Token]:
    # The front matter of playbooks is for programs.
    text = re.sub(r"\A---\n.*?\n---\n", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    return _markdown().parse(text)


def _body(source: Path) -> tuple[str, set[Path]]:
    """The page's HTML, and every file of the checkout it leads to."""
    tokens = _tokens(source)
    heads = [index for index, token in enumerate(tokens) if token.type == "heading_open"]
    texts = [_plain(tokens[index + 1]) for index in heads]
    for index, slug in zip(heads, slugs(texts), strict=True):
        tokens[index].attrSet("id", slug)
    leads_to = set()
    for token in (child for block in tokens for child in block.children or []):
        name = {"link_open": "href", "image": "src"}.get(token.type)
        if name and not re.match(r"[a-z]+:", str(token.attrGet(name))):
            path, _, anchor = str(token.attrGet(name)).partition("#")
            if path:
                target = (source.parent / path).resolve()
                if not target.exists() or CHECKOUT not in target.parents:
                    raise SystemExit(f"{source.relative_to(CHECKOUT)} leads to {path}, which is not there.")
                leads_to.add(target)
                token.attrSet(name, _link(source, target) + (f"#{anchor}" if anchor else ""))
    html = _markdown().renderer.render(tokens, _markdown().options, {})
    html = html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return html, leads_to


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or [])


def _page_of(source: Path) -> Path:
    relative = source.relative_to(CHECKOUT)
    if relative.suffix != ".md":
        return relative
    return relative.with_name("index.html" if relative.name == "README.md" else f"{relative.stem}.html")


def _link(source: Path, target: Path) -> str:
    return Path(os.path.relpath(_page_of(target), _page_of(source).parent)).as_posix()


def _menu() -> Menu:
    """The sections of the index with the pages they lead to, each page once."""
    menu: Menu = [("", [("sme2_assets", CHECKOUT / "README.md"), ("Documentation", INDEX)])]
    seen = {CHECKOUT / "README.md", INDEX}
    tokens = _tokens(INDEX)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            menu.append((_plain(tokens[index + 1]), []))
        children = token.children or []
        for place, child in enumerate(children):
            if child.type == "link_open" and len(menu) > 1:
                target = (INDEX.parent / str(child.attrGet("href")).partition("#")[0]).resolve()
                if target.suffix == ".md" and target not in seen:
                    seen.add(target)
                    menu[-1][1].append((children[place + 1].content, target))
    return menu


def _whole(source: Path, body: str, menu: Menu) -> str:
    parts = []
    for title, entries in menu:
        parts.append(f"<h2>{escape(title)}</h2>" if title else "")
        items = (
            f'<li><a href="{_link(source, target)}"{" aria-current=page" if target == source else ""}>'
            f"{escape(name)}</a></li>"
            for name, target in entries
        )
        parts.append(f"<ul>{''.join(items)}</ul>")
    found = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL)
    title = re.sub(r"<[^>]+>", "", found[1]) if found else source.stem
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<style>{STYLE}</style>\n</head>\n<body>\n<div class="page">\n'
        f'<nav aria-label="Documents">{"".join(parts)}</nav>\n'
        f"<main>\n{body}</main>\n</div>\n</body>\n</html>\n"
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    if folder.exists():
        raise SystemExit(f"{folder} is there already: remove it, or name another.")
    print(f"{len(build_site(folder))} pages: {folder / 'docs' / 'index.html'}")
