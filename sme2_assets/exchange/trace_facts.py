"""What is known about a trace besides its events: from options, the kit's manifest and names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sme2_assets.errors import Sme2Error, TraceError, printable
from sme2_assets.evidence.foreign import Facts
from sme2_assets.exchange.kit import KIT_MANIFEST, kit_result
from sme2_assets.models.spec import PRECISIONS
from sme2_assets.profiling.limits import MOST_THREADS
from sme2_assets.store import safe_name
from sme2_assets.targets.keys import PLATFORMS

# Platforms known to the kit or to us. Any other name says nothing.
KNOWN_PLATFORMS = tuple(dict.fromkeys((*PLATFORMS, "android")))

STATE = re.compile(r"(?<![A-Za-z0-9])sme2[_-]?(on|off)(?![A-Za-z0-9])", re.IGNORECASE)
_THREADS = re.compile(r"_t(\d{1,4})$")
_MODEL_STEM = re.compile(rf"(?P<model>.+?)(?:_xnnpack)?(?:[_-](?P<precision>{'|'.join(PRECISIONS)}))?")


def said_by_options(
    model: str | None, platform: str | None, sme2: str | None, threads: int | None, warmup: int | None
) -> Facts:
    """What a person says about all traces; MODEL may end in a precision, as everywhere."""
    facts = Facts(platform=platform, sme2=sme2, threads=threads, warmup=warmup)
    if model is None:
        return facts
    name, separator, precision = safe_name(model).rpartition("-")
    if separator and precision in PRECISIONS:
        return facts.model_copy(update={"model": name, "precision": precision})
    return facts.model_copy(update={"model": model})


def facts_of(trace: Path, said: Facts) -> tuple[Facts, dict[str, Any] | None]:
    """What is known: from the options first, then from the kit's manifest, then from names."""
    kit = kit_result(trace)
    named = _named(trace)
    if said.sme2 is None and named.sme2 == "?":
        raise TraceError(
            f"Its file name and its folder ({printable(trace.parent.name)}) name different SME2 states.",
            "Say which it is: --sme2 on or --sme2 off.",
        )
    by_kit = _told_by_kit(kit)
    if said.sme2 is None and None not in (by_kit.sme2, named.sme2) and by_kit.sme2 != named.sme2:
        raise TraceError(
            f"{KIT_MANIFEST} says that SME2 was {by_kit.sme2}, and its name or folder says {named.sme2}.",
            "Say which it is: --sme2 on or --sme2 off.",
        )
    told = [said, by_kit, named]
    model = next((facts for facts in told if facts.model is not None), Facts())
    found = {
        name: next((getattr(facts, name) for facts in told if getattr(facts, name) is not None), None)
        for name in ("platform", "sme2", "threads", "warmup")
    }
    # The precision goes with the model's name: from another source it may belong to another model.
    return Facts(model=model.model, precision=model.precision, **found), kit


def _named(path: Path) -> Facts:
    """What names say: `out_<model>/runs/<platform>/<experiment>/<model>_<experiment>_t<threads>.etdump`."""
    stem, experiment = path.stem, path.parent.name
    threads = _THREADS.search(stem)
    plain = stem[: threads.start()] if threads else stem
    named = _model_of(_model_in_name(plain, experiment), path)
    states = {match[1].lower() for match in (STATE.search(plain), STATE.search(experiment)) if match}
    return Facts(
        model=named.model,
        precision=named.precision,
        platform=_platform_of(path, plain, experiment),
        sme2=("?" if len(states) > 1 else states.pop()) if states else None,
        threads=int(threads[1]) if threads and 1 <= int(threads[1]) <= MOST_THREADS else None,
    )


@dataclass(frozen=True)
class _Model:
    model: str | None
    precision: str | None


def _model_of(stem: str | None, path: Path | None = None) -> _Model:
    """Model and precision from the stem of a .pte; else the model from the folder `out_<model>`."""
    match = _MODEL_STEM.fullmatch(stem) if stem else None
    if match and _is_name(match["model"]):
        return _Model(match["model"], match["precision"])
    above = list(path.parents) if path is not None else []
    for folder in above:
        if folder.name.startswith("out_") and folder / "runs" in above:
            name = folder.name.removeprefix("out_")
            return _Model(name if _is_name(name) else None, None)
    return _Model(None, None)


def _model_in_name(plain: str, experiment: str) -> str | None:
    """The part of a file name before its experiment; None if the name does not have that form."""
    before, separator, after = plain.partition(f"_{experiment}")
    if separator and not after:
        return before
    state = STATE.search(plain)
    if state is None:
        return None
    words = plain[: state.start()].rstrip("_-").split("_")
    if words[-1] in KNOWN_PLATFORMS:
        words.pop()
    return "_".join(words) or None


def _platform_of(path: Path, plain: str, experiment: str) -> str | None:
    for folder in path.parents:
        if folder.parent.name == "runs" and folder.name in KNOWN_PLATFORMS:
            return folder.name
    return _platform_in(plain, experiment)


def _platform_in(*names: str) -> str | None:
    """Only from an experiment's name: any other file or folder may be called mac."""
    words = [word for name in names if STATE.search(name) for word in re.split(r"[_.\-]", name)]
    named = {word for word in words if word in KNOWN_PLATFORMS}
    return named.pop() if len(named) == 1 else None


def _told_by_kit(result: dict[str, Any] | None) -> Facts:
    if result is None:
        return Facts()
    threads, model, experiment = (result.get(key) for key in ("threads", "model", "experiment"))
    named = _model_of(Path(model.replace("\\", "/")).stem if isinstance(model, str) else None)
    known = isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= MOST_THREADS
    experiment = experiment if isinstance(experiment, str) else ""
    state = STATE.search(experiment)
    # Its warm-up does not concern the trace: the kit warms up in a separate process.
    return Facts(
        model=named.model,
        precision=named.precision,
        platform=_platform_in(experiment),
        sme2=state[1].lower() if state else None,
        threads=threads if known else None,
    )


def _is_name(text: str) -> bool:
    try:
        safe_name(text)
    except Sme2Error:
        return False
    return len(text) <= 100
