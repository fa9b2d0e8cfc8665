"""Where a precision fails a model, the layer that it fails in is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sme2_assets.models.differences import in_torch
from sme2_assets.models.differences.in_torch import Divergence, divergence_of, first_divergence
from sme2_assets_tests.models.small import Loud, spec, thorough, values

LOUD = spec("loud", Loud, values(2, 8))


def test_the_layer_that_overflows_a_half_is_named() -> None:
    found = divergence_of(LOUD, "fp16", log=print)
    assert found is not None
    assert (found.operator, found.module, found.finite) == ("aten.linear.default", "loud", False)
    assert found.source is not None
    assert found.source.startswith("sme2_assets_tests/models/small.py:")
    assert found.origin.code == "x = self.loud(x)"
    assert found.before_db > 50
    assert "module 'loud'" in str(found)
    assert "run in torch" in str(found)


def test_nothing_is_named_where_torch_agrees_with_fp32() -> None:
    assert divergence_of(LOUD, "int8_dynamic", log=print) is None
    assert divergence_of(LOUD, "fp32", log=print) is None


@pytest.mark.parametrize("precision", ["int8", *thorough("fp16")])
def test_a_stricter_bound_names_the_first_layer_below_it(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much noise a layer adds depends on the CPU's arithmetic, so each bound is what was found before."""
    models: list[tuple[Any, ...]] = []
    first = in_torch._first_below

    def remembered(*both: Any) -> Divergence | None:
        models.append(both[:-1])
        return first(*both)

    monkeypatch.setattr(in_torch, "_first_below", remembered)
    found = first_divergence(f"toy_cnn-{precision}", minimum_db=100.0, log=print)
    assert found is not None
    assert (found.module, found.operator, found.compared) == ("stem.0.0", "aten.conv2d.default", 1)
    named = [found]
    for _ in range(5):
        bound = named[-1].sqnr_db
        with torch.no_grad():
            found = first(*models[0], bound)
        assert found is not None
        assert found.sqnr_db < bound <= found.before_db
        assert found.compared > named[-1].compared
        # Noise grows from layer to layer: batch norms that were folded away must not look like a jump.
        assert found.sqnr_db > bound - 6
        named.append(found)
    assert ("expand.0.0", "aten.conv2d.default") in [(each.module, each.operator) for each in named]


@pytest.mark.thorough
def test_the_models_own_bounds_hold_in_torch() -> None:
    assert first_divergence("toy_cnn-int8", log=print) is None
