"""Where a precision fails a model, the layer that it fails in is named."""

from __future__ import annotations

import pytest

from sme2_assets.models.divergence import divergence_of, first_divergence
from sme2_assets_tests.models.small import Loud, spec, values

LOUD = spec("loud", Loud, values(2, 8))


def test_the_layer_that_overflows_a_half_is_named() -> None:
    found = divergence_of(LOUD, "fp16", log=print)
    assert found is not None
    assert (found.operator, found.module, found.finite) == ("aten.linear.default", "loud", False)
    assert found.source is not None
    assert found.source.startswith("sme2_assets_tests/models/small.py:")
    assert found.origin.code == "x = self.loud(x)"
    assert found.before_db > 50
    assert "torch" in found.basis
    assert "module 'loud'" in str(found)


def test_nothing_is_named_where_torch_agrees_with_fp32() -> None:
    assert divergence_of(LOUD, "int8_dynamic", log=print) is None
    assert divergence_of(LOUD, "fp32", log=print) is None


@pytest.mark.parametrize(("precision", "minimum_db"), [("int8", 32.0), ("fp16", 60.0)])
def test_a_stricter_bound_names_a_layer_of_a_quantised_or_halved_model(
    precision: str, minimum_db: float
) -> None:
    found = first_divergence(f"toy_cnn-{precision}", minimum_db=minimum_db, log=print)
    assert found is not None
    assert found.operator == "aten.conv2d.default"
    assert found.module in {"expand.0.0", "depthwise.0.0", "project.0"}
    # Noise grows from layer to layer: batch norms that were folded away must not look like a jump.
    assert found.sqnr_db > minimum_db - 6
    assert found.before_db < minimum_db + 6
    assert found.compared > 2


def test_the_models_own_bounds_hold_in_torch() -> None:
    assert first_divergence("toy_cnn-int8", log=print) is None
