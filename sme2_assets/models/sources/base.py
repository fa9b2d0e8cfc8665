"""The interface that every source of models implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from sme2_assets.models.spec import ModelProblem, ModelSpec

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
