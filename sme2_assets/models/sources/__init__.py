"""Where models come from: the interface of a source, and one module per kind of place; `registry` lists them.

A source lists its models without importing torch, and finds a model by name. It returns `ModelSpec`s;
something that should be a model but is not becomes a `ModelProblem`, so that one broken file hides nothing
else. Models that are known by name alone are in `listed.yaml`.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import yaml

from sme2_assets.models.spec import COMMON_PRECISIONS, ModelProblem, ModelSpec

# Not `list[...]`: the method of that name hides the type.
Entries: TypeAlias = Sequence[ModelSpec | ModelProblem]


class ModelSource(Protocol):
    """A place that has models. Listing and finding import neither torch nor the models' code."""

    name: str
    prefix: str
    """What its names begin with, `executorch` for `executorch:resnet8`; empty if they have no prefix."""
    automatic: bool
    """Whether its models are partitions automatically, or only when somebody asks for one."""

    def list(self) -> Entries:
        """Its models, or the best known if there are too many."""
        ...

    def names(self) -> Sequence[str]:
        """The names it lists, without the prefix."""
        ...

    def find(self, name: str) -> ModelSpec | None:
        """The model of a name without the prefix; a source may find more than it lists."""
        ...


class Listed:
    """Implements `names` and `find` from `list`."""

    def list(self) -> Entries:
        raise NotImplementedError

    def names(self) -> Sequence[str]:
        return [entry.name.rpartition(".")[2] for entry in self.list()]

    def find(self, name: str) -> ModelSpec | None:
        for entry in self.list():
            if isinstance(entry, ModelSpec) and entry.name.rpartition(".")[2] == name:
                return entry
        return None


def installed_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class KnownModel:
    """What `listed.yaml` says of a model; `module` and `factory` of those that come with the package."""

    description: str
    precisions: Sequence[str]
    module: str = ""
    factory: str = ""
    large: bool = False


@functools.cache
def known_models(source: str, precisions: tuple[str, ...] = COMMON_PRECISIONS) -> dict[str, KnownModel]:
    """By name, the models of a source in `listed.yaml`; these precisions where it says none."""
    tables = yaml.safe_load(Path(__file__).with_name("listed.yaml").read_text(encoding="utf-8"))
    return {name: KnownModel(**{"precisions": precisions, **entry}) for name, entry in tables[source].items()}
