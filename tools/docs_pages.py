"""A hook of MkDocs (mkdocs.yml): every document of the checkout is a page, under the path of its file.

MkDocs takes pages from one folder, and ours are in several: the top, docs/, skills/, data/. Each keeps its
path, so links between them, and those of assets (guide.py), work on the site as they do on a code host.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).resolve().parent.parent
# What documents link to and no other pattern has.
PATTERNS = (
    *("*.md", "docs/**/*", "skills/*/SKILL.md", "data/README.md"),
    *("LICENSE", "sme2_assets/models/edgetam_image_encoder.py", "examples/*.ipynb"),
)
# A signpost to AGENTS.md, where some assistants look for it.
LEFT_OUT = (CHECKOUT / "CLAUDE.md",)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replaces the files of docs/ by all documents, with their paths in the checkout. The theme's stay."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    found = {path for pattern in PATTERNS for path in CHECKOUT.glob(pattern) if path.is_file()}
    for path in sorted(found.difference(LEFT_OUT)):
        files.append(_file(path.relative_to(CHECKOUT), config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Python-Markdown takes no second word after the language of a code block."""
    return re.sub(r"^(```\w+) .*$", r"\1", markdown, flags=re.MULTILINE)


def _file(path: Path, config: MkDocsConfig) -> File:
    # docs/warehouse.md is served as docs/warehouse.md/index.html, README.md as the index of its folder.
    page = path.with_name("index.html") if path.name == "README.md" else path / "index.html"
    return File(
        path.as_posix(),
        src_dir=str(CHECKOUT),
        dest_dir=config.site_dir,
        use_directory_urls=config.use_directory_urls,
        dest_uri=page.as_posix() if path.suffix == ".md" else None,
    )
