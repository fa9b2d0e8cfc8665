"""Where models come from: one module per kind of place, one small interface for all.

A source lists its models without importing torch, and finds a model by name. It returns `ModelSpec`s;
something that should be a model but is not becomes a `ModelProblem`, so that one broken file hides nothing
else.
"""

from __future__ import annotations

from sme2_assets.models.sources.base import ModelSource
from sme2_assets.models.sources.built_in import BuiltIn
from sme2_assets.models.sources.entry_points import EntryPoints
from sme2_assets.models.sources.executorch_examples import ExecutorchExamples
from sme2_assets.models.sources.folder import ModelsFolder
from sme2_assets.models.sources.huggingface import HuggingFace
from sme2_assets.models.sources.pte import PteFiles
from sme2_assets.models.sources.vision_packages import Timm, Torchvision

__all__ = ["ModelSource", "all_sources"]


def all_sources() -> list[ModelSource]:
    """Every source, in the order people should see them."""
    return [
        BuiltIn(),
        ModelsFolder(),
        PteFiles(),
        EntryPoints(),
        ExecutorchExamples(),
        HuggingFace(),
        Torchvision(),
        Timm(),
    ]
