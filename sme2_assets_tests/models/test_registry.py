"""Names of models and variants, and what a person reads when one is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sme2_assets.errors import ExportError
from sme2_assets.models.registry import PRECISIONS, Variant, model_spec, models, parse_variant, variants


def test_every_model_comes_in_every_precision() -> None:
    assert [variant.key for variant in variants()] == [
        f"{model}-{precision}" for model in ("toy_cnn", "mobilenet_v3_small") for precision in PRECISIONS
    ]


def test_every_variant_key_leads_back_to_its_variant() -> None:
    for variant in variants():
        assert parse_variant(variant.key) == variant
    assert parse_variant("toy_cnn-fp16") == Variant("toy_cnn", "fp16")


def test_an_unknown_model_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ExportError) as error:
        parse_variant("toycnn-fp32")
    assert "'toycnn'" in error.value.what
    assert "did you mean 'toy_cnn'?" in error.value.what
    assert "sme2 models" in str(error.value)


def test_a_model_unlike_any_other_gets_no_guess_but_the_way_to_the_list() -> None:
    with pytest.raises(ExportError) as error:
        model_spec("zzzzzzzz")
    assert "did you mean" not in str(error.value)
    assert "sme2 models" in str(error.value)


def test_an_unknown_precision_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ExportError) as error:
        parse_variant("mobilenet_v3_small-int4")
    assert "'int4' is not a precision of 'mobilenet_v3_small'" in error.value.what
    assert "did you mean 'mobilenet_v3_small-int8'?" in error.value.what
    assert "fp32, fp16, int8" in str(error.value)
    assert "sme2 models" in str(error.value)


def test_a_model_without_a_precision_is_told_so() -> None:
    with pytest.raises(ExportError, match="names no precision") as error:
        parse_variant("toy_cnn")
    assert "did you mean 'toy_cnn-" in error.value.what


@pytest.mark.parametrize(
    "key",
    ["", "-fp32", ".-fp32", "../toy_cnn-fp32", "toy cnn-fp32", "toy_cnn-fp32\n", "töy-fp32", "a|b-fp32"],
)
def test_a_key_that_could_not_be_a_folder_or_partition_is_refused(key: str) -> None:
    with pytest.raises(ExportError, match="cannot be a model variant"):
        parse_variant(key)


def test_every_model_says_what_it_is() -> None:
    assert all(spec.description for spec in models())


def test_listing_and_loading_models_imports_no_torch(python: Callable[..., str]) -> None:
    printed = python(
        "import sys, sme2_assets.models, sme2_assets.models.registry, sme2_assets.models.artifact\n"
        "import sme2_assets.models.export, sme2_assets.models.artifact\n"
        "sme2_assets.models.registry.variants()\n"
        "print(sorted({'torch', 'executorch', 'torchao'} & set(sys.modules)))"
    )
    assert printed.strip() == "[]"
