"""Which models there are and how their variants are named.

A model is a name, a sentence and a factory that is imported when the model is built, so listing models
costs nothing. What a factory gives follows ExecuTorch's `EagerModelBase`: `get_eager_model()` and
`get_example_inputs()`. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sme2_assets.errors import ExportError

PRECISIONS = ("fp32", "fp16", "int8")

# Weights, inputs and calibration data of the built-in models all come from this one number.
SEED = 2

# Variant keys are Dagster partition keys and folder names: these characters are safe in both.
_SAFE_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class EagerModel(Protocol):
    """What a factory builds: ExecuTorch's `EagerModelBase` and anything of the same shape.

    An object may also have `get_calibration_inputs(count)`, a list of input tuples that stand for the
    data of the model; without it int8 is calibrated on seeded noise of the example inputs' shapes.
    """

    def get_eager_model(self) -> Any: ...

    def get_example_inputs(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class ModelSpec:
    """A model that can be exported."""

    name: str
    description: str
    factory: str
    """`package.module:attribute`, called without arguments to give an `EagerModel`."""
    sources: tuple[str, ...] = ()
    """Further modules whose code decides what is built: they are part of the cache key."""
    precisions: tuple[str, ...] = PRECISIONS

    @property
    def factory_module(self) -> str:
        return self.factory.partition(":")[0]

    def build(self) -> EagerModel:
        """Import the factory and call it. This is where torch gets imported."""
        module, _, attribute = self.factory.partition(":")
        return cast(EagerModel, getattr(importlib.import_module(module), attribute)())


@dataclass(frozen=True)
class Variant:
    """A model at one precision."""

    model: str
    precision: str

    @property
    def key(self) -> str:
        return f"{self.model}-{self.precision}"

    def __str__(self) -> str:
        return self.key


_SEEDING = "sme2_assets.models.seeding"
_BUILT_IN = (
    ModelSpec(
        name="toy_cnn",
        description="Small CNN, 3x64x64, with an operator of every category and one that is not delegated",
        factory="sme2_assets.models.toy_cnn:ToyCnn",
        sources=(_SEEDING,),
    ),
    ModelSpec(
        name="mobilenet_v3_small",
        description="MobileNetV3-Small, 3x224x224, 1000 classes, 2.5 M parameters, 57 MMAC",
        factory="sme2_assets.models.mobilenet_v3_small:MobileNetV3Small",
        sources=(_SEEDING,),
    ),
)


def models() -> list[ModelSpec]:
    """Every model that can be exported, in the order people should see them."""
    return list(_BUILT_IN)


def variants() -> list[Variant]:
    """Every model at every precision it is offered in."""
    return [Variant(spec.name, precision) for spec in models() for precision in spec.precisions]


def model_spec(name: str) -> ModelSpec:
    """The model of that name."""
    by_name = {spec.name: spec for spec in models()}
    if name in by_name:
        return by_name[name]
    raise ExportError(
        f"There is no model {name!r}{_did_you_mean(name, list(by_name))}",
        "list the models there are with `sme2 models`",
    )


def parse_variant(key: str) -> Variant:
    """The variant of a key such as `toy_cnn-fp16`, or an error that says what was meant."""
    if not _SAFE_KEY.fullmatch(key):
        raise ExportError(
            f"{key!r} cannot be a model variant: only letters, digits and . _ - may be in it",
            "write <model>-<precision>, such as toy_cnn-fp16; list the models with `sme2 models`",
        )
    known = {variant.key: variant for variant in variants()}
    if key in known:
        return known[key]
    # The error is about the part that is wrong: the precision when the model is right, else the model.
    model, _, precision = key.rpartition("-")
    if not model or key in {spec.name for spec in models()}:
        model, precision = key, ""
    spec = model_spec(model)
    problem = f"{precision!r} is not a precision of {model!r}" if precision else f"{key!r} names no precision"
    suggestion = _did_you_mean(key, [f"{spec.name}-{offered}" for offered in spec.precisions], always=True)
    raise ExportError(
        f"{problem}{suggestion}",
        f"use one of {', '.join(spec.precisions)}; list the models with `sme2 models`",
    )


def _did_you_mean(given: str, known: Sequence[str], *, always: bool = False) -> str:
    nearest = difflib.get_close_matches(given, known, n=1, cutoff=0.0 if always else 0.4)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""
