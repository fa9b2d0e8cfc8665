"""Names of models, their options and variants, and what a person reads when one is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import ExportError
from sme2_assets.models.registry import (
    catalogue,
    is_known,
    model_spec,
    models,
    parse_variant,
    requested,
    variants,
)
from sme2_assets.models.spec import (
    LONGEST_KEY,
    ModelOption,
    ModelSpec,
    Variant,
    plain_key,
    split_key,
    valid_name,
)

MODEL_FILE = '''
class Net:
    """{description}."""

    def __init__(self, size: int = 32, flavour: str = "plain"): ...
    def get_eager_model(self): ...
    def get_example_inputs(self): ...
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder of a data folder of its own."""
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.delenv("SME2_MODELS", raising=False)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_the_first_model_is_the_toy_and_comes_in_the_common_precisions() -> None:
    assert [variant.key for variant in variants()][:3] == ["toy_cnn-fp32", "toy_cnn-fp16", "toy_cnn-int8"]


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


def test_the_name_of_a_file_means_all_models_in_it(folder: Path) -> None:
    entries = [{"name": f"pair_{part}", "factory": "Net", "description": part} for part in ("a", "b")]
    (folder / "pair.py").write_text(f"MODEL = {entries!r}\n{MODEL_FILE.format(description='One')}")
    expected = [Variant(f"pair_{part}", "fp16") for part in ("a", "b")]
    assert requested("pair-fp16") == expected
    assert set(expected) < set(requested("pair"))
    assert requested("pair_a-fp16") == expected[:1]


def test_a_model_of_another_source_is_suggested_too() -> None:
    with pytest.raises(ExportError, match="did you mean 'executorch:resnet8'"):
        model_spec("executorch_resnet8")
    with pytest.raises(ExportError, match="did you mean 'resnet8'"):
        model_spec("executorch:resnet9")


@pytest.mark.parametrize("wrong", ["int4", "int9"])
def test_a_precision_that_is_not_offered_is_answered_with_the_nearest_one(wrong: str) -> None:
    with pytest.raises(ExportError) as error:
        parse_variant(f"mobilenet_v3_small-{wrong}")
    assert f"'{wrong}' is not a precision of 'mobilenet_v3_small'" in error.value.what
    assert "did you mean 'int8'?" in error.value.what
    assert "fp32, fp16, int8" in str(error.value)
    assert "sme2 models" in str(error.value)


def test_a_model_without_a_precision_is_told_so() -> None:
    with pytest.raises(ExportError, match="names no precision") as error:
        parse_variant("toy_cnn")
    assert "did you mean" not in error.value.what, "none is nearer than another"
    assert "fp32, fp16, int8" in str(error.value)


def test_a_precision_that_is_like_no_other_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ExportError, match="'fp8' is not a precision") as error:
        parse_variant("toy_cnn-fp8")
    assert "did you mean" not in error.value.what
    assert "fp32, fp16, int8" in str(error.value)


def test_a_precision_may_be_in_capital_letters() -> None:
    assert requested("toy_cnn-FP16") == [parse_variant("toy_cnn-fp16")]
    assert plain_key("hf:bert@layers=2-INT8") == "hf.bert.layers_2-int8"
    assert plain_key("gone-FP16") == "gone-fp16"
    assert valid_name("mine-FP16") == "mine-FP16_", "the name of a model does not end in one"


@pytest.mark.parametrize(
    "key",
    ["", "-fp32", ".-fp32", "../toy_cnn-fp32", "toy cnn-fp32", "toy_cnn-fp32\n", "töy-fp32", "a|b-fp32"],
)
def test_a_key_that_could_not_be_a_folder_or_partition_is_refused(key: str) -> None:
    for read in (parse_variant, requested):
        with pytest.raises(ExportError, match="cannot be a model variant"):
            read(key)


def test_a_person_may_ask_for_a_model_or_for_one_of_its_variants() -> None:
    assert [variant.key for variant in requested("toy_cnn")] == [
        "toy_cnn-fp32",
        "toy_cnn-fp16",
        "toy_cnn-int8",
    ]
    assert requested("toy_cnn-int8") == [Variant("toy_cnn", "int8")]
    assert requested("executorch:resnet8-fp16") == [Variant("executorch.resnet8", "fp16")]
    with pytest.raises(ExportError, match="'fp31' is not a precision of 'toy_cnn'"):
        requested("toy_cnn-fp31")


def test_options_are_part_of_the_key_and_come_back_from_it(folder: Path) -> None:
    (folder / "mine.py").write_text(MODEL_FILE.format(description="A net"))
    spec = model_spec("mine@size=64,flavour=salt&pepper 0.5")
    assert spec.key == "mine.flavour_salt-26pepper-200-2e5.size_64"
    assert dict(spec.values) == {"size": 64, "flavour": "salt&pepper 0.5"}
    assert spec.title == "mine@flavour=salt&pepper 0.5,size=64"
    again = model_spec(spec.key)
    assert (again.values, again.identity()) == (spec.values, spec.identity())
    assert parse_variant(f"{spec.key}-fp16") == parse_variant(f"{spec.title}-fp16")
    assert model_spec("mine").identity() != spec.identity()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_as_the_value_of_an_option_survives_its_key(text: str) -> None:
    spec = ModelSpec("mine", "", "", "", options=(ModelOption("value_of_it", "str"),))
    spec = ModelSpec("mine", "", "", "", options=spec.options, values=(("value_of_it", text),))
    assert split_key(spec.key, ["hf"]) == ("mine", {"value_of_it": text})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mine@colour=red", "has no option 'colour'"),
        ("mine@siz=3", r"no option 'siz' \(did you mean 'size'\?\)"),
        ("mine@size=large", "'large' is not a valid int for the option size"),
        ("mine@size=1,size=2", "given twice"),
        ("mine@size", "is not an option"),
        ("mine@", "is not an option"),
        ("mine@size=1\n", "cannot be a model variant|is not an option"),
        (f"mine@flavour={'x' * LONGEST_KEY}", "too long"),
        ("toy_cnn@size=3", "'?toy_cnn'? has no options"),
        ("executorch:resnet8@depth=3", "has no options"),
        ("toy_cnn@backend=vulkan", "has no backend 'vulkan'"),
        ("toy_cnn@backend=portable-int8", "'int8' is not .*: models are quantised for XNNPACK"),
    ],
)
def test_an_option_that_is_wrong_is_refused_with_the_reason(folder: Path, text: str, complaint: str) -> None:
    (folder / "mine.py").write_text(MODEL_FILE.format(description="A net"))
    with pytest.raises(ExportError, match=complaint):
        requested(text)


def test_a_file_named_by_an_option_decides_what_is_built(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.py").write_text(MODEL_FILE.format(description="A net"))
    weights = tmp_path / "w.pt"
    weights.write_bytes(b"one")
    identities = [model_spec(f"mine@flavour={weights}").identity()]
    weights.write_bytes(b"two!")
    identities.append(model_spec(f"mine@flavour={weights}").identity())
    assert identities[0] != identities[1]


def test_two_models_of_one_name_are_both_refused_with_both_places(folder: Path) -> None:
    (folder / "toy_cnn.py").write_text(MODEL_FILE.format(description="Not the built-in one"))
    (folder / "other.py").write_text(MODEL_FILE.format(description="Another"))
    found = catalogue()
    assert [spec.name for spec in found.specs if spec.name in ("toy_cnn", "other")] == ["other"]
    assert [problem.name for problem in found.problems] == ["toy_cnn", "toy_cnn"]
    with pytest.raises(ExportError) as error:
        parse_variant("toy_cnn-fp32")
    assert "sme2_assets.models.toy_cnn" in error.value.what
    assert str(folder / "toy_cnn.py") in error.value.what
    assert "rename" in str(error.value.remedy)


def test_a_variant_is_known_while_its_model_is_there_even_if_broken(folder: Path) -> None:
    path = folder / "mine.py"
    path.write_text(MODEL_FILE.format(description="A net"))
    assert is_known("mine-fp32")
    assert is_known("mine.size_64-fp32")
    assert not is_known("mine-int4")
    path.write_text("class Net(:")
    assert is_known("mine-fp32"), "it may be mended"
    path.unlink()
    assert not is_known("mine-fp32")
    assert is_known("executorch.resnet8-fp32")
    assert not is_known("executorch.resnet9-fp32")


def test_a_missing_package_is_named_with_the_extra_that_brings_it(folder: Path) -> None:
    (folder / "mine.py").write_text("import timm\n" + MODEL_FILE.format(description="Uses timm"))
    (folder / "other.py").write_text("import no_such_thing\n" + MODEL_FILE.format(description="Cannot"))
    assert {"mine", "other"} <= {spec.name for spec in models()}
    with pytest.raises(ExportError, match="needs the package 'no_such_thing'") as error:
        model_spec("other").build()
    assert "pip install no_such_thing" in str(error.value)


def test_an_error_of_the_models_own_code_names_its_line(folder: Path) -> None:
    (folder / "mine.py").write_text("1 / 0\n" + MODEL_FILE.format(description="Cannot"))
    with pytest.raises(ExportError, match=r"ZeroDivisionError: division by zero \(mine\.py:1\)"):
        model_spec("mine").build()


def test_listing_and_loading_models_imports_no_torch(python: Callable[..., str], folder: Path) -> None:
    (folder / "mine.py").write_text("import torch\n" + MODEL_FILE.format(description="A net"))
    printed = python(
        "import sys, sme2_assets.models.registry as registry\n"
        "import sme2_assets.models.export, sme2_assets.models.artifact, sme2_assets.diagnostics.model\n"
        "[source.list() for source in registry.sources()]\n"
        "registry.model_spec('mine@size=3').identity(), registry.requested('hf:bert')\n"
        "print(sorted({'torch', 'executorch', 'torchao', 'transformers'} & set(sys.modules)))"
    )
    assert printed.strip() == "[]"
