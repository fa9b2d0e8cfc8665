"""The interface of a source of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from sme2_assets.models.spec import ModelProblem, ModelSpec

# What a source lists. Not `list[...]`: the method of that name hides the type.
Entries: TypeAlias = Sequence[ModelSpec | ModelProblem]


class ModelSource(Protocol):
    """A place that has models. Listing and finding import no torch and no code of the models."""

    name: str
    prefix: str
    """What its names begin with, `executorch` for `executorch:resnet8`; empty where they stand alone."""
    automatic: bool
    """Whether its models are partitions by themselves, or only when somebody asks for one."""

    def list(self) -> Entries:
        """What it has, or the best known of it where that is too much."""
        ...

    def names(self) -> Sequence[str]:
        """The names it lists, without the prefix."""
        ...

    def find(self, name: str) -> ModelSpec | None:
        """The model of a name without the prefix; a source may find more than it lists."""
        ...


class Listed:
    """The two methods that follow from `list`."""

    def list(self) -> Entries:
        raise NotImplementedError

    def names(self) -> Sequence[str]:
        return [entry.name.rpartition(".")[2] for entry in self.list()]

    def find(self, name: str) -> ModelSpec | None:
        for entry in self.list():
            if isinstance(entry, ModelSpec) and entry.name.rpartition(".")[2] == name:
                return entry
        return None
