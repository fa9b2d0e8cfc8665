"""Architectures of Hugging Face transformers: `hf:bert`, `hf:vit@layers=4`, `hf:t5@part=encoder`.

Nothing is downloaded: weights are random, and sizes are small unless options say otherwise. Real weights
come from a local folder as written by `save_pretrained` (`weights=FOLDER`). Any model type of transformers
can be named; those listed are the ones that tests build.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.huggingface.configuration import Sizes
from sme2_assets.models.huggingface.types import (
    WHOLE,
    ModelType,
    model_type,
    package_folder,
    type_names,
)
from sme2_assets.models.sources import Entries, KnownModel, Listed, installed_version, known_models
from sme2_assets.models.spec import (
    PRECISIONS,
    EagerModel,
    ModelOption,
    ModelSpec,
    OptionValue,
    cached_sha256,
    how_to_install,
)

OPTIONS = (
    ModelOption("part", "str"),
    *(ModelOption(size, "int", default) for size, default in vars(Sizes()).items()),
    ModelOption("weights", "str"),
    # How near the outputs must be to the eager model's; without it, every precision has its own bound.
    ModelOption("minimum_sqnr_db", "float"),
)
_CODE = Path(__file__).resolve().parent.parent / "huggingface"


class HuggingFace(Listed):
    """Any model type of transformers."""

    name = "Hugging Face transformers"
    prefix = "hf"
    automatic = False

    def list(self) -> Entries:
        return [_spec(name) for name in _known()]

    def find(self, name: str) -> ModelSpec | None:
        # A dot would be read as the beginning of an option: kosmos-2.5 is kosmos-2_5 in keys.
        return _spec(name.replace(".", "_"))


def _known() -> dict[str, KnownModel]:
    return known_models(HuggingFace.prefix, PRECISIONS)


def _spec(name: str) -> ModelSpec:
    known = _known().get(name) or KnownModel(name, PRECISIONS)
    return ModelSpec(
        name=f"{HuggingFace.prefix}.{name}",
        description=f"{known.description}; small, with random weights, unless options say otherwise",
        source=HuggingFace.name,
        place="package transformers",
        factory=functools.partial(build, name),
        identify=functools.partial(_identify, name),
        precisions=tuple(known.precisions),
        options=OPTIONS,
        parts=functools.partial(_parts, name),
    )


def _identify(name: str) -> dict[str, str]:
    files = sorted([*_CODE.glob("*.py"), *_CODE.glob("*.yaml")])
    code = {f"huggingface/{path.name}": cached_sha256(path) for path in files}
    return {"model_type": name, "transformers": installed_version("transformers"), **code}


def _parts(name: str) -> tuple[str, ...]:
    known = _registered(name)
    return known.parts if known is not None else ()


def _registered(name: str) -> ModelType | None:
    by_name = {registered.replace(".", "_"): registered for registered in type_names()}
    return model_type(by_name[name]) if name in by_name else None


def build(
    name: str,
    part: str = WHOLE,
    weights: str = "",
    minimum_sqnr_db: float | None = None,
    **chosen: OptionValue,
) -> EagerModel:
    """A model type, or a part of it, with random weights or those in a folder."""
    if package_folder() is None:
        raise ExportError(
            f"hf:{name} needs the package 'transformers', which is not installed",
            how_to_install("transformers"),
        )
    kind = _registered(name)
    if kind is None:
        version = installed_version("transformers")
        raise ExportError(
            f"transformers {version} has no model type {name!r}{did_you_mean(name, type_names())}",
            "name one of its model types, such as bert, vit, gpt2",
        )
    # Here, because it imports torch.
    from sme2_assets.models.huggingface.build import eager_model

    model: Any = eager_model(kind, part, _sizes(name, chosen), dict(chosen), weights)
    if minimum_sqnr_db is not None:
        model.minimum_sqnr_db = dict.fromkeys(PRECISIONS, minimum_sqnr_db)
    return model


def _sizes(name: str, chosen: dict[str, OptionValue]) -> Sizes:
    sizes = Sizes(**{option: int(value) for option, value in chosen.items()})
    if min(vars(sizes).values()) < 1 or sizes.hidden % sizes.heads:
        raise ExportError(
            f"hf:{name} cannot have these sizes: hidden={sizes.hidden}, heads={sizes.heads}, "
            f"layers={sizes.layers}",
            "sizes are at least 1, and heads divides hidden",
        )
    return sizes
