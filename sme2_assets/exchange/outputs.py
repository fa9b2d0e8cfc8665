"""The output folder of an experiment: its summary, and over all its sessions the kit's manifest and metrics.

Each session has a folder with its export. The two files above them list what is in all of these, so that what
reads an output root of the kit can read this one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sme2_assets.exchange.kit import KIT_MANIFEST, KIT_METRICS
from sme2_assets.store import write_json

SUMMARY_FILE = "experiment.json"
# The folder of a session's export in the folder of the session.
EXPORT = "export"


def write_kit_files(output: Path, sessions: Sequence[Path]) -> None:
    """Writes them from the exports of these folders; of none, removes those of an earlier experiment."""
    for name in (KIT_MANIFEST, KIT_METRICS):
        found = [(each, json.loads((each / EXPORT / name).read_text())) for each in sessions]
        if not found:
            (output / name).unlink(missing_ok=True)
            continue
        models = {document["model"] for _, document in found}
        results = [
            {"model": document["model"], **_moved(result, f"{each.name}/{EXPORT}")}
            for each, document in found
            for result in document["results"]
        ]
        head = {key: value for key, value in found[0][1].items() if key not in _OF_ONE_SESSION}
        model = models.pop() if len(models) == 1 else None
        write_json(output / name, {**head, "model": model, "results": results})


# What the file of one session says, and that of several cannot.
_OF_ONE_SESSION = ("variant", "model_sha256", "run_manifests")


def _moved(result: dict[str, Any], below: str) -> dict[str, Any]:
    """A result whose files are below another folder."""
    return {
        key: {
            kind: {**reference, **{name: f"{below}/{reference[name]}" for name in ("path", "relative_path")}}
            for kind, reference in value.items()
        }
        if key in ("artifacts", "artifact_refs")
        else value
        for key, value in result.items()
    }
