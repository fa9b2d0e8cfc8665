"""New experiment files: templates as they are, and files of a few answers, with comments.

Belongs here: text that becomes a file. Does not: asking for it (cli).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from sme2_assets.errors import Sme2Error
from sme2_assets.experiments.schema import Experiment
from sme2_assets.models.spec import did_you_mean
from sme2_assets.store import write_text_atomically

_FOLDER = resources.files("sme2_assets.experiments") / "templates"
_COMMENTS = {
    "name": "Of the experiment.",
    "description": "",
    "models": "Any name that `sme2 profile` takes, or the path of a .pte relative to this file.",
    "precisions": "Of the models that name none. Left out: all that a model is offered in.",
    "platforms": "linux and mac: this machine. android: a device. emulated: kernels and outputs, no times.",
    "sme2": "A comparison needs both: they are measured interleaved.",
    "threads": "Each number is a session of its own.",
    "rounds": "Exactly so many. Left out: 10 to 30 on hardware, as needed.",
    "budget_s": "When to stop adding rounds, in seconds.",
    "iterations": "Timed inferences per process.",
    "warmup": "Exactly so many per process. Left out: until steady.",
    "passes": "latency and etdump are always made; kernels samples which kernels really ran.",
    "timeout_s": "Limit for one runner process, in seconds.",
    "quiet_patience_s": "How long a session waits for a quiet machine, in seconds.",
    "entries": "Parts with settings of their own; what they leave out is said above.",
    "comparisons": "Which pairs to show at the end.",
    "report": "What is shown at the end.",
    "output": "Reports and a summary are copied here.",
}


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
    lines = ["# Run it with `sme2 run`, check it with `sme2 config check`. All keys: docs/experiments.md."]
    for key, value in document_of(experiment).items():
        if comment := _COMMENTS.get(key):
            lines.append(f"# {comment}")
        lines += _block(key, value, "")
    return "\n".join(lines) + "\n"


def document_of(experiment: Experiment) -> dict[str, Any]:
    """What a file has to say to mean this experiment, in the order people read it."""
    given = experiment.model_dump(exclude_none=True, exclude_defaults=True)
    order = [key for key in _COMMENTS if key in given]
    return {key: _short(key, given[key]) for key in order}


def _short(key: str, value: Any) -> Any:
    if key == "platforms":
        return [it["name"] if set(it) == {"name"} else it for it in value]
    if key == "entries":
        return [{name: _short(name, of_entry) for name, of_entry in entry.items()} for entry in value]
    return value


def _block(key: str, value: Any, indent: str) -> list[str]:
    """A key with its value. Scalars are written as JSON where they could be read as something else."""
    if isinstance(value, dict):
        lines = [f"{indent}{key}:"]
        for name, inner in value.items():
            lines += _block(name, inner, indent + "  ")
        return lines
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        lines = [f"{indent}{key}:"]
        for item in value:
            if not isinstance(item, dict) or not item:
                lines.append(f"{indent}  - {_scalar(item)}")
                continue
            inner_lines = [
                line for name, inner in item.items() for line in _block(name, inner, indent + "    ")
            ]
            first = inner_lines[0].removeprefix(indent + "    ")
            lines += [f"{indent}  - {first}", *inner_lines[1:]]
        return lines
    if isinstance(value, list):
        return [f"{indent}{key}: [{', '.join(_scalar(item) for item in value)}]"]
    return [f"{indent}{key}: {_scalar(value)}"]


def _scalar(value: Any) -> str:
    # The words of the schema are safe as they are; a text of the user's may be anything.
    plain = isinstance(value, str) and value.isidentifier() and value not in ("true", "false", "null")
    return value if plain else json.dumps(value, ensure_ascii=False)


def experiment_of(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a few answers; what was not answered is left out.

    A device, its CPUs and its power mode go to the platforms that have such things.
    """
    document = {key: value for key, value in answers.items() if value not in (None, [])}
    asked = {key: document.pop(key) for key in ("device", "cpus", "power") if key in document}
    chosen: list[Any] = []
    for name in document["platforms"]:
        has = {"android": ("device", "cpus", "power"), "linux": ("cpus",)}.get(name, ())
        given = {key: value for key, value in asked.items() if key in has}
        chosen.append({"name": name, **given} if given else name)
    for key in asked:
        if not any(isinstance(it, dict) and key in it for it in chosen):
            raise Sme2Error(
                f"{key} was given, and none of {', '.join(document['platforms'])} has such a thing.",
                f"Leave {key} out, or give --platform android.",
            )
    return {**document, "platforms": chosen}


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Writes a file that is not there yet, or with `force` one that is."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise Sme2Error(f"{path.name} would not be read as YAML.", "Name it *.yaml.")
    if path.is_dir() or (path.exists() and not force):
        raise Sme2Error(f"{path} is there already.", "Give another name, or --force to replace it.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise Sme2Error(f"{path.parent} is no folder that can be written to.", "Make it first.")
    write_text_atomically(path, text)
