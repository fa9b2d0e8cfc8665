"""Which models there are and how their variants are named.

Models come from sources behind one small interface. Models of some sources are partitions automatically:
those built in, in a models folder, or registered by an installed package. The other sources
(ExecuTorch's examples, Hugging Face, torchvision, timm) have more names than anybody wants: one of their
models becomes a partition when it is asked for. What a factory returns follows ExecuTorch's
`EagerModelBase`. Nothing here imports torch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models import rewrites
from sme2_assets.models.sources import ModelSource
from sme2_assets.models.sources.built_in import BuiltIn
from sme2_assets.models.sources.entry_points import EntryPoints
from sme2_assets.models.sources.executorch_examples import ExecutorchExamples
from sme2_assets.models.sources.folder import ModelsFolder
from sme2_assets.models.sources.huggingface import HuggingFace
from sme2_assets.models.sources.pte import SUFFIX, PteFiles, method_names, take_in
from sme2_assets.models.sources.vision_packages import VisionPackage
from sme2_assets.models.spec import (
    INPUTS,
    LIBRARY,
    PRECISIONS,
    SIZE_PREFIX,
    ModelProblem,
    ModelSpec,
    Variant,
    split_key,
    split_precision,
    split_text,
)

# The modules of built-in models take it from here, and other lines in them would make their exports anew.
from sme2_assets.models.spec import SEED as SEED
from sme2_assets.models.user_files import store_inputs, store_library

# Variant keys are Dagster partition keys and folder names: these characters are safe in both.
_SAFE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Catalogue:
    """What was found: models in the order people should see them, and entries that cannot be used."""

    specs: list[ModelSpec]
    problems: list[ModelProblem]


def sources() -> list[ModelSource]:
    """Where models come from, in the order people should see them."""
    return [
        BuiltIn(),
        ModelsFolder(),
        PteFiles(),
        EntryPoints(),
        ExecutorchExamples(),
        HuggingFace(),
        VisionPackage("torchvision"),
        VisionPackage("timm"),
    ]


def catalogue(include: Callable[[ModelSource], bool] = lambda source: source.automatic) -> Catalogue:
    """What the sources list; by default, those whose models are registered automatically."""
    found = [entry for source in sources() if include(source) for entry in source.list()]
    specs = [entry for entry in found if isinstance(entry, ModelSpec)]
    problems = [entry for entry in found if isinstance(entry, ModelProblem)]
    places: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        places.setdefault(spec.name, []).append(spec)
    # Neither of two models with the same name is used: nobody could tell later which one a result came from.
    twice = {name: same for name, same in places.items() if len(same) > 1}
    problems += [_conflict(spec, same) for same in twice.values() for spec in same]
    return Catalogue([spec for spec in specs if spec.name not in twice], problems)


def models() -> list[ModelSpec]:
    """Every model that is registered automatically, in the order people should see them."""
    return catalogue().specs


def variants() -> list[Variant]:
    """Every registered model at every precision it is offered in."""
    return [Variant(spec.key, precision) for spec in models() for precision in spec.precisions]


def is_large(key: str) -> bool:
    """Whether a variant is left out unless it is asked for by name: see `ModelSpec.large`."""
    return model_spec(parse_variant(key).model).large


def arrivals() -> list[tuple[Variant, ModelSpec]]:
    """The variants of models that did not come with this package."""
    return [
        (Variant(spec.key, precision), spec)
        for spec in models()
        if spec.source != "built-in"
        for precision in spec.precisions
    ]


def is_known(key: str) -> bool:
    """Whether the model of a variant still exists; a broken or ambiguous one does, and may be repaired."""
    try:
        parse_variant(key)
    except ExportError:
        name = split_precision(key)[0].partition(".")[0]
        return any(problem.name == name for problem in catalogue().problems)
    return True


def model_spec(name: str) -> ModelSpec:
    """The model of that name or key, with its options: `toy_cnn`, `hf:bert@layers=2`, `hf.bert.layers_2`."""
    plain, options = _split(name)
    spec = _find(plain)
    own = {option.name for option in spec.options or ()}
    common = {rewrites.OPTION, rewrites.KEEP} - own
    changes = {option: options.pop(option) for option in common & options.keys()}
    if options:
        spec = spec.with_options(options)
    return rewrites.with_changes(spec, changes) if changes else spec


def parse_variant(key: str) -> Variant:
    """The variant of a key such as `toy_cnn-fp16`, or an error that suggests what was meant."""
    model, precision = split_precision(key)
    _require_safe(model, key)
    if not precision:
        # The error names the part that is wrong: the precision if the model is right, else the model.
        head, _, tail = key.rpartition("-")
        spec, precision = _model_of_incomplete(key, head, tail)
    else:
        spec = model_spec(model)
    if precision in spec.precisions:
        return Variant(spec.key, precision)
    problem = (
        f"{precision!r} is not a precision of {spec.title!r}" if precision else f"{key!r} names no precision"
    )
    if spec.portable and precision in PRECISIONS:
        problem += ": models are quantised for XNNPACK"
    raise ExportError(
        f"{problem}{did_you_mean(precision, spec.precisions)}",
        f"use one of {', '.join(spec.precisions)}; list the models with `sme2 models`",
    )


def requested(text: str) -> list[Variant]:
    """What a person asks for: a variant, or all precisions of a model; every part if it has several."""
    model, precision = split_precision(text)
    _require_safe(model, text)
    if parts := _parts(model):
        return [found for part in parts for found in requested(f"{part}-{precision}" if precision else part)]
    if not precision:
        try:
            spec = model_spec(model)
        except ExportError:
            if "-" not in text:
                raise
        else:
            return [Variant(spec.key, offered) for offered in spec.precisions]
    return [parse_variant(text)]


def variants_of(
    model: str,
    inputs: Path | None = None,
    op_library: Path | None = None,
    sizes: Mapping[str, Sequence[str]] | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> list[str]:
    """The named variant, or all precisions of the named model, with the given inputs, kernels and sizes.

    A .pte given by path is first copied to the models folder. `sizes` are for dimensions that can vary.
    """
    path, at, options = model.partition("@")
    if path.endswith((SUFFIX, f"{SUFFIX}-as_is")):
        found = catalogue()
        program = Path(path.removesuffix("-as_is")).expanduser()
        name = take_in(program, (*found.specs, *found.problems))
        log(f"{path} is the model {name} from now on")
        model = f"{name}{at}{options}"
    chosen = {f"{SIZE_PREFIX}{name}": list(values) for name, values in (sizes or {}).items()}
    if inputs is not None:
        chosen[INPUTS] = [store_inputs(inputs.expanduser())]
    if op_library is not None:
        chosen[LIBRARY] = [store_library(op_library.expanduser())]
    asked = [(variant, model_spec(variant.model)) for variant in requested(model)]
    for _, spec in asked:
        chosen_method = "method" in dict(spec.values)
        if spec.pte and not chosen_method and len(methods := method_names(spec.pte)) > 1:
            log(
                f"{spec.name} has the methods {', '.join(methods)}: {spec.method} is profiled, "
                f"another one as {spec.name}@method=NAME"
            )
    return [
        Variant(spec.with_options(dict(zip(chosen, values, strict=True))).key, variant.precision).key
        for variant, spec in asked
        for values in itertools.product(*chosen.values())
    ]


def _parts(model: str) -> list[str]:
    """The names of a model's parts, or of the models in a file; empty if there are none or one is chosen."""
    try:
        spec = model_spec(model)
    except ExportError:
        # A file may hold several models: `sme2 onboard --from` writes one for each part of what it is given.
        return [each.name for each in models() if Path(each.place).with_suffix("").name == model]
    chosen = dict(spec.values)
    return [] if "part" in chosen else [spec.with_options({"part": part}).title for part in spec.parts()]


def _split(name: str) -> tuple[str, dict[str, str]]:
    if "@" in name or ":" in name:
        return split_text(name)
    return split_key(name, [source.prefix for source in sources() if source.prefix])


def _require_safe(model: str, text: str) -> None:
    # An option's value may be anything: in a key it is escaped.
    if not _SAFE_KEY.fullmatch(model.partition("@")[0].replace(":", ".", 1)) or not text.isprintable():
        raise ExportError(
            f"{text!r} cannot be a model variant: only letters, digits and . _ - may be in it",
            "write <model>-<precision>, such as toy_cnn-fp16; list the models with `sme2 models`",
        )


def _model_of_incomplete(key: str, head: str, tail: str) -> tuple[ModelSpec, str]:
    """The model of a key without a known precision, and what the key has in its place."""
    try:
        return model_spec(key), ""
    except ExportError:
        if not head:
            raise
        return model_spec(head), tail


def _find(name: str) -> ModelSpec:
    prefix, dot, rest = name.partition(".")
    for source in sources():
        if dot and source.prefix == prefix:
            spec = source.find(rest)
            if spec is None:
                raise ExportError(
                    f"{source.name} has no model {rest!r}{did_you_mean(rest, source.names())}",
                    f"list its models with `sme2 models --source {prefix}`",
                )
            return spec
    found = catalogue()
    for spec in found.specs:
        if spec.name == name:
            return spec
    for problem in found.problems:
        if problem.name == name:
            raise ExportError(
                f"The model {name!r} cannot be used: {problem.problem} ({problem.place})", problem.remedy
            )
    raise ExportError(
        f"There is no model {name!r}{did_you_mean(name, _all_names(found.specs))}",
        "list the models there are with `sme2 models`",
    )


def _all_names(specs: Sequence[ModelSpec]) -> list[str]:
    names = [spec.name for spec in specs]
    for source in sources():
        if source.prefix:
            names += [f"{source.prefix}:{name}" for name in source.names()]
    return names


def _conflict(spec: ModelSpec, same: Sequence[ModelSpec]) -> ModelProblem:
    others = " and ".join(f"{one.source} ({one.place})" for one in same)
    return ModelProblem(
        spec.name,
        spec.source,
        spec.place,
        f"{len(same)} models have the name {spec.name!r}: {others}",
        "rename all but one of them: rename the file, or give another name in its MODEL declaration",
    )
