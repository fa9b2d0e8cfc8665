"""New experiment files: templates as they are, and files made from a few answers, with comments.

Belongs here: text that becomes a file. Does not: asking for it (cli).
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from sme2_assets.errors import Sme2Error, did_you_mean
from sme2_assets.experiments.schema import Experiment
from sme2_assets.store import write_text_atomically
from sme2_assets.targets.shapes import SCHEME as EMULATED
from sme2_assets.written.documents import Dumper

_FOLDER = resources.files("sme2_assets.experiments") / "templates"


def templates() -> dict[str, str]:
    """The templates by name, each with its text."""
    names = sorted(entry.name for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml"))
    return {name.removesuffix(".yaml"): (_FOLDER / name).read_text(encoding="utf-8") for name in names}


def template(name: str) -> str:
    known = templates()
    if name not in known:
        raise Sme2Error(
            f"There is no template {name!r}{did_you_mean(name, list(known))}.",
            f"Templates are {', '.join(known)}.",
        )
    return known[name]


def yaml_text(experiment: Experiment) -> str:
    """An experiment as a YAML file with a comment on every key; reading it gives the same experiment."""
    parts = ["# Run it with `sme2 run`, check it with `sme2 config check`. All keys: docs/experiments.md."]
    for key, value in document_of(experiment).items():
        comment = Experiment.model_fields[key].description or ""
        parts += textwrap.wrap(comment, 100, initial_indent="# ", subsequent_indent="# ")
        # Innermost lists and mappings in brackets, everything else on lines of its own.
        flow = None if isinstance(value, list | dict) else False
        text = yaml.dump(
            {key: value},
            Dumper=Dumper,
            sort_keys=False,
            default_flow_style=flow,
            allow_unicode=True,
            width=math.inf,
        )
        parts.append(text.rstrip())
    return "\n".join(parts) + "\n"


def document_of(experiment: Experiment) -> dict[str, Any]:
    """What a file must contain to mean this experiment, its name first."""
    given = experiment.model_dump(exclude_none=True, exclude_defaults=True)
    order = sorted(given, key=lambda key: key not in ("name", "description"))
    return {key: _short(key, given[key]) for key in order}


def _short(key: str, value: Any) -> Any:
    if key == "platforms":
        return [it["name"] if set(it) == {"name"} else it for it in value]
    if key == "entries":
        return [{name: _short(name, of_entry) for name, of_entry in entry.items()} for entry in value]
    return value


def experiment_of(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The document for a few answers; what was not answered is left out.

    A device, its CPUs and its power mode go to the platforms that have them; an emulated device to its own.
    """
    document = {key: value for key, value in answers.items() if value not in (None, [])}
    asked = {key: document.pop(key) for key in ("device", "cpus", "power") if key in document}
    chosen: list[Any] = []
    of_platform = {"android": ("device", "cpus", "power"), "linux": ("device", "cpus")}
    if str(asked.get("device")).startswith(EMULATED):
        of_platform = {"android": ("cpus", "power"), "linux": ("cpus",), "emulated": ("device",)}
    for name in document["platforms"]:
        has = of_platform.get(name, ())
        given = {key: value for key, value in asked.items() if key in has}
        chosen.append({"name": name, **given} if given else name)
    for key in asked:
        if not any(isinstance(it, dict) and key in it for it in chosen):
            raise Sme2Error(
                f"{key} was given, but none of {', '.join(document['platforms'])} has such a thing.",
                f"Leave {key} out, or give --platform android.",
            )
    return {**document, "platforms": chosen}


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Writes a new file; with `force`, replaces one that exists."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise Sme2Error(f"{path.name} would not be read as YAML.", "Name it *.yaml.")
    if path.is_dir() or (path.exists() and not force):
        raise Sme2Error(f"{path} already exists.", "Give another name, or --force to replace it.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise Sme2Error(f"{path.parent} is not a folder that can be written to.", "Create it first.")
    write_text_atomically(path, text)
