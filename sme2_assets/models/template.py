"""A model file to start from: it works as it is, and says what to replace. Its text is `template.py.txt`."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from sme2_assets.errors import ExportError
from sme2_assets.models.brought import model_file
from sme2_assets.models.registry import catalogue
from sme2_assets.models.sources.folder import RESERVED, default_folder
from sme2_assets.models.spec import check_name
from sme2_assets.models.trust import trust
from sme2_assets.store import write_text_atomically


def write_template(name: str, folder: Path | None = None, source: str | None = None) -> Path:
    """Write a working model file of that name, for what `source` names; existing files are not touched."""
    check_name(name)
    if name in RESERVED:
        raise ExportError(f"{name!r} is the name of a source of models", "choose another name")
    found = catalogue()
    owners = {spec.name: f"{spec.source} ({spec.place})" for spec in found.specs}
    owners |= {problem.name: f"{problem.source} ({problem.place})" for problem in found.problems}
    if name in owners:
        raise ExportError(f"There is already a model {name!r}: {owners[name]}", "choose another name")
    path = (folder or default_folder()) / f"{name}.py"
    if path.exists():
        raise ExportError(f"{path} already exists", "choose another name, or edit that file")
    # A user who starts a models folder here writes what will be in it.
    first = not any(path.parent.glob("*.py"))
    write_text_atomically(path, model_file(name, source) if source else template(name))
    if first:
        trust(path.parent)
    return path


def template(name: str) -> str:
    """The text of a model file: it works as it is, and says what to replace."""
    words = [word for word in re.split(r"[^A-Za-z0-9]", name) if word]
    cls = "".join(word[:1].upper() + word[1:] for word in words)
    if not cls[0].isalpha():
        cls = f"Model{cls}"
    text = (resources.files(__package__) / "template.py.txt").read_text(encoding="utf-8")
    return text.replace("@NAME@", name).replace("@CLASS@", cls)
