"""Where models come from: what each source finds, builds, and says about what it cannot use."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.errors import ExportError
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.registry import catalogue, model_spec, models, parse_variant, requested
from sme2_assets.models.sources import executorch_examples, known_models
from sme2_assets.models.sources.python_code import declared_models
from sme2_assets.models.spec import AS_IS, ModelProblem, ModelSpec
from sme2_assets_tests.models.small import thorough

WORKING_EXAMPLES = list(known_models("executorch"))
NET = """
import torch

class Net:
    def get_eager_model(self):
        return torch.nn.Linear(4, 2)

    def get_example_inputs(self):
        return (torch.ones(1, 4),)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty models folder; what is imported from it is forgotten afterwards."""
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.delenv("SME2_MODELS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "models").mkdir()
    yield tmp_path / "models"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def brought() -> list[str]:
    """Names of the models that did not come with the package."""
    return [spec.name for spec in models() if spec.source != "built-in"]


def problem(name: str) -> ModelProblem:
    [found] = [problem for problem in catalogue().problems if problem.name == name]
    return found


def output_of(name: str) -> torch.Tensor:
    built = model_spec(name).build()
    with torch.no_grad():
        return built.get_eager_model()(*built.get_example_inputs())


def test_a_python_file_in_the_folder_is_a_model(folder: Path) -> None:
    (folder / "mine.py").write_text(NET)
    assert brought() == ["mine"]
    assert output_of("mine").shape == (1, 2)
    assert model_spec("mine").place == str(folder / "mine.py")


def test_what_the_file_declares_is_what_is_listed(folder: Path) -> None:
    declaration = {"name": "renamed", "description": "Two words", "precisions": ["fp32", "int4"]}
    (folder / "mine.py").write_text(f"MODEL = {declaration!r}\n" + NET)
    assert brought() == ["renamed"]
    spec = model_spec("renamed")
    assert (spec.description, spec.precisions) == ("Two words", ("fp32", "int4"))


def test_one_file_may_declare_several_models(folder: Path) -> None:
    source = NET + "\ndef wide():\n    return Net()\n"
    declaration = '[{"name": "a", "factory": "Net"}, {"name": "b", "factory": "wide"}]'
    (folder / "pair.py").write_text(f"MODEL = {declaration}\n{source}")
    assert brought() == ["a", "b"]
    assert output_of("b").shape == (1, 2)


def test_a_package_in_the_folder_is_a_model_and_may_import_its_parts(folder: Path) -> None:
    package = folder / "packed"
    package.mkdir()
    (package / "layers.py").write_text("WIDTH = 5\n")
    (package / "__init__.py").write_text(
        "from .layers import WIDTH\n" + NET.replace("Linear(4, 2)", "Linear(4, WIDTH)")
    )
    assert output_of("packed").shape == (1, 5)
    before = model_spec("packed").identity()
    (package / "layers.py").write_text("WIDTH = 66\n")
    assert model_spec("packed").identity() != before
    assert output_of("packed").shape == (1, 66)


def test_helpers_are_no_models_but_belong_to_what_is_built(folder: Path) -> None:
    (folder / "_sizes.py").write_text("WIDTH = 3\n")
    (folder / "mine.py").write_text(
        "from _sizes import WIDTH\n" + NET.replace("Linear(4, 2)", "Linear(4, WIDTH)")
    )
    assert brought() == ["mine"]
    assert output_of("mine").shape == (1, 3)
    before = model_spec("mine").identity()
    (folder / "_sizes.py").write_text("WIDTH = 11\n")
    assert model_spec("mine").identity() != before
    assert output_of("mine").shape == (1, 11), "an edited file is run anew in the same process"


def test_the_same_content_elsewhere_has_the_same_identity(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.py").write_text(NET)
    before = model_spec("mine").identity()
    (folder / "mine.py").rename(tmp_path / "mine.py")
    os.environ["SME2_MODELS"] = str(tmp_path)
    try:
        assert model_spec("mine").identity() == before
    finally:
        del os.environ["SME2_MODELS"]


def test_files_that_a_model_names_decide_what_is_built(folder: Path) -> None:
    (folder / "mine.py").write_text('MODEL = {"files": ["w.pt"]}\n' + NET)
    with pytest.raises(ExportError, match=r"'w\.pt', which is not there"):
        model_spec("mine").identity()
    (folder / "w.pt").write_bytes(b"1")
    before = model_spec("mine").identity()
    (folder / "w.pt").write_bytes(b"22")
    assert model_spec("mine").identity() != before


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("class Net(:", "line 1 is not Python"),
        ("\x00", "cannot be read as Python|is not Python"),
        (b"\xff\xfe\xfa".decode("latin1"), "no class|not Python"),
        ("print('hello')", r"no class with get_eager_model\(\)"),
        (NET + NET.replace("class Net", "class Other"), "2 classes that could be the model: Net, Other"),
        ("MODEL = dict(name='x')\n" + NET, "line 1 is computed"),
        ("MODEL = 3\n" + NET, "is not a dictionary"),
        ("MODEL = []\n" + NET, "is not a dictionary"),
        ("MODEL = {'nmae': 'x'}\n" + NET, "the key 'nmae'"),
        ("MODEL = {'name': 3}\n" + NET, "'name' of MODEL is not a text"),
        ("MODEL = {'name': '../x'}\n" + NET, "cannot be the name of a model"),
        ("MODEL = {'name': 'x-fp32'}\n" + NET, "ends like the name of a variant"),
        ("MODEL = {'name': 'hf'}\n" + NET, "is the name of a source"),
        ("MODEL = {'factory': 'Nett'}\n" + NET, "there is no 'Nett'"),
        ("MODEL = {'precisions': ['fp64']}\n" + NET, "fp64"),
        ("MODEL = {'precisions': 'fp32'}\n" + NET, "not a list of texts"),
        (NET.replace("class Net:", "class Net:\n    def __init__(self, size): ..."), "without 'size'"),
    ],
)
def test_a_broken_file_is_listed_with_its_error_and_hides_no_other(
    folder: Path, source: str, complaint: str
) -> None:
    (folder / "good.py").write_text(NET)
    (folder / "bad.py").write_text(source)
    assert brought() == ["good"]
    with pytest.raises(ExportError, match=complaint):
        model_spec("bad")
    assert problem("bad").remedy


def test_a_file_whose_name_cannot_be_a_key_says_so(folder: Path) -> None:
    (folder / "my model.py").write_text(NET)
    (folder / "v1.2.py").write_text(NET)
    (folder / "timm.py").write_text(NET)
    assert brought() == []
    assert {problem.name for problem in catalogue().problems} == {"my model", "v1.2", "timm"}


def test_options_are_read_from_the_factory_without_running_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        dedent(
            '''
            SIZE = 7

            class Base:
                def __init__(self, size: int = SIZE, *, rate=0.5, deep=False, weights: "str" = "x",
                             file: Path | None = None, other=None): ...
                def get_eager_model(self): ...

            class Net(Base):
                """A net. And more."""
                def get_example_inputs(self): ...
            '''
        )
    )
    [model] = declared_models(path, "mine")
    assert model.factory == "Net"
    assert model.options is not None
    assert [(option.name, option.kind, option.default) for option in model.options] == [
        ("size", "int", 7),
        ("rate", "float", 0.5),
        ("deep", "bool", False),
        ("weights", "str", "x"),
        ("file", "str", None),
        ("other", None, None),
    ]


def test_options_reach_the_factory_with_their_types(folder: Path) -> None:
    (folder / "mine.py").write_text(
        NET.replace(
            "class Net:",
            "class Net:\n    def __init__(self, width: int = 2, bias: bool = True):\n"
            "        self.width, self.bias = width, bias",
        ).replace("Linear(4, 2)", "Linear(4, self.width, bias=self.bias)")
    )
    assert output_of("mine@width=9,bias=false").shape == (1, 9)
    assert model_spec("mine@bias=false").build().get_eager_model().bias is None


def test_further_folders_are_listed_and_a_missing_one_is_a_problem(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    further = tmp_path / "further"
    further.mkdir()
    (further / "mine.py").write_text(NET)
    monkeypatch.setenv("SME2_MODELS", os.pathsep.join([str(further), str(tmp_path / "gone"), ""]))
    assert brought() == ["mine"]
    assert "SME2_MODELS" in problem("gone").problem


def test_a_file_that_cannot_be_read_is_a_problem(folder: Path) -> None:
    if os.getuid() == 0 and sys.platform == "linux":
        # No mode keeps root from reading; this file has nothing at its beginning that could be read.
        (folder / "mine.py").symlink_to("/proc/self/mem")
    else:
        (folder / "mine.py").write_text(NET)
        (folder / "mine.py").chmod(0)
    assert problem("mine").remedy == "check the file"


def test_an_installed_package_registers_models_by_entry_point(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    package = site / "zoo_of_tests"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('listing must not import this')\n")
    (package / "nets.py").write_text(NET.replace("class Net:", 'class Net:\n    """An installed net."""\n'))
    info = site / "zoo_of_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo-of-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sme2_assets.models]\nzoo_net = zoo_of_tests.nets:Net\nno_class = zoo_of_tests.nets\n"
        "not_there = no_such_package.nets:Net\nbad.name = zoo_of_tests.nets:Net\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert brought() == ["zoo_net"]
    spec = model_spec("zoo_net")
    assert (spec.description, spec.source) == ("An installed net", "entry point")
    assert "zoo-of-tests 1.0" in spec.place
    assert {problem.name for problem in catalogue().problems} == {"no_class", "not_there", "bad.name"}
    before = spec.identity()
    (package / "__init__.py").write_text("")
    assert model_spec("zoo_net").identity() != before, "an editable install changes under the same version"
    assert output_of("zoo_net").shape == (1, 2)


def test_every_example_of_executorch_can_be_named() -> None:
    from executorch.examples.models import MODEL_NAME_TO_MODEL

    source = executorch_examples.ExecutorchExamples()
    assert set(source.names()) == set(MODEL_NAME_TO_MODEL)
    assert list(source.names())[: len(WORKING_EXAMPLES)] == WORKING_EXAMPLES
    assert not brought_by_itself("executorch")


def brought_by_itself(prefix: str) -> list[str]:
    return [spec.name for spec in models() if spec.name.startswith(f"{prefix}.")]


FIRST_EXAMPLE, *OTHER_EXAMPLES = WORKING_EXAMPLES


@pytest.mark.parametrize("name", [FIRST_EXAMPLE, *thorough(*OTHER_EXAMPLES)])
def test_an_example_of_executorch_is_built_and_runs(name: str) -> None:
    built = model_spec(f"executorch:{name}").build()
    with torch.no_grad():
        assert built.get_eager_model().eval()(*built.get_example_inputs()) is not None


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_an_example_that_needs_a_package_says_which_to_install() -> None:
    spec = model_spec("executorch:mv2")
    assert "torchvision" in spec.description
    with pytest.raises(ExportError, match="torchvision") as error:
        spec.build()
    assert "pip install -e '.[torchvision]'" in str(error.value)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_vision_package_that_is_missing_is_named_with_its_extra(package: str) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    spec = model_spec(f"{package}:resnet18@image=64")
    assert spec.key == f"{package}.resnet18.image_64"
    with pytest.raises(ExportError, match=f"needs the package '{package}'") as error:
        spec.build()
    assert f"pip install -e '.[{package}]'" in str(error.value)


def test_transformers_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match="needs the package 'transformers'") as error:
        model_spec("hf:bert").build()
    assert "pip install -e '.[hf]'" in str(error.value)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("hf:bert", (1, 32, 128)),
        ("hf:vit", (1, 1000)),
        ("hf:gpt2@layers=1,vocabulary=50", (1, 32, 50)),
        ("hf:llama@hidden=64,sequence=8", (1, 8, 1000)),
        ("hf:distilbert@layers=1", (1, 32, 128)),
        ("hf:deit@layers=1,image=32", (1, 1000)),
        ("hf:qwen2@layers=1", (1, 32, 1000)),
    ],
)
def test_a_transformer_is_built_from_its_configuration_without_download(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert output_of(name).shape == shape


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("hf:bret", "no model type 'bret' .*did you mean 'bert'"),
        ("hf:bert@heads=3", "heads divides hidden"),
    ],
)
def test_a_transformer_that_cannot_be_built_says_why(name: str, complaint: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ExportError) as error:
        model_spec(name).build()
    import re

    assert re.search(complaint, str(error.value))


def test_a_pte_in_the_folder_is_a_model_with_one_variant(
    folder: Path, exported: Callable[[str], ExportedModel]
) -> None:
    program = exported("toy_cnn-fp32")
    (folder / "given.pte").write_bytes(program.pte.read_bytes())
    [variant] = requested("given")
    assert variant.key == f"given-{AS_IS}"
    spec = model_spec("given")
    assert (spec.pte, spec.etrecord, spec.input_files) == (folder / "given.pte", None, ())
    before = spec.identity()
    (folder / "given.etrecord").write_bytes(b"record")
    (folder / "given.input_0.npy").write_bytes(program.inputs[0].read_bytes())
    spec = model_spec("given")
    assert spec.etrecord == folder / "given.etrecord"
    assert spec.input_files == (folder / "given.input_0.npy",)
    assert spec.identity() != before
    with pytest.raises(ExportError, match="nothing to build"):
        spec.build()


@pytest.mark.parametrize("content", [b"", b"ET12", b"0" * 200, b"\x00" * 4 + b"ET12"])
def test_a_file_that_is_no_program_is_listed_with_its_error(folder: Path, content: bytes) -> None:
    (folder / "given.pte").write_bytes(content)
    assert brought() == []
    assert "not an ExecuTorch program" in problem("given").problem


def test_a_program_and_a_python_file_of_one_name_are_a_conflict(
    folder: Path, exported: Callable[[str], ExportedModel]
) -> None:
    (folder / "mine.py").write_text(NET)
    (folder / "mine.pte").write_bytes(exported("toy_cnn-fp32").pte.read_bytes())
    assert brought() == []
    places = {problem.place for problem in catalogue().problems}
    assert places == {str(folder / "mine.py"), str(folder / "mine.pte")}


def test_every_source_follows_the_interface() -> None:
    from sme2_assets.models.registry import sources

    for source in sources():
        assert source.name
        assert bool(source.prefix) != source.automatic
        for spec in source.list():
            assert isinstance(spec, ModelSpec)
            assert parse_variant(f"{spec.key}-{spec.precisions[0]}").model == spec.key
            assert source.find(spec.name.rpartition(".")[2]) is not None


def onboarded(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["onboard", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_folder_of_weights_is_brought_part_by_part_with_its_content(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=96, vocab_size=80, max_position_embeddings=64,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config).eval()
    network.save_pretrained(tmp_path / "weights")
    assert "sme2 check-model mine_decode" in onboarded("mine", "--from", str(tmp_path / "weights"))
    assert brought() == ["mine_prefill", "mine_decode"]
    made = model_spec("mine_prefill@sequence=8").build()
    [tokens] = made.get_example_inputs()
    with torch.no_grad():
        found = made.get_eager_model()(tokens)[0]
        assert torch.allclose(found, network(tokens).logits[:, -1], atol=1e-5)
    before = model_spec("mine_decode").identity()
    network.half().save_pretrained(tmp_path / "weights")
    assert model_spec("mine_decode").identity() != before


def test_what_a_callable_of_a_package_gives_is_a_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "brought_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 2), (torch.ones(1, 4),)\n"
        "def bare():\n    return torch.nn.Linear(4, 2)\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    onboarded("mine", "--from", "brought_package.nets:make")
    onboarded("bare", "--from", "brought_package.nets:bare")
    assert output_of("mine").shape == (1, 2)
    with pytest.raises(ExportError, match=r"nets:bare returns a Linear, which is not a model"):
        model_spec("bare").build()
    before = model_spec("mine").identity()
    (package / "helper.py").write_text("WIDTH = 3\n")
    assert model_spec("mine").identity() != before


@pytest.mark.parametrize("source", ["nowhere", "a folder", "package.module"])
def test_what_is_neither_folder_nor_callable_is_refused_and_writes_nothing(folder: Path, source: str) -> None:
    done = CliRunner().invoke(main, ["onboard", "mine", "--from", source])
    assert done.exit_code != 0
    assert "neither a folder nor a callable" in done.output
    assert list(folder.iterdir()) == []


SHAPES = """
    def get_dynamic_shapes(self):
        return ({0: SEQ, 1: 2 * SEQ},)
"""
LITERAL = 'SEQ = torch.export.Dim("seq", min=4, max=512)\n'


@pytest.mark.parametrize(
    ("top", "end", "size", "said"),
    [
        ("", "", "seq_8", "no dimension 'seq'"),
        (LITERAL, SHAPES, "sek_8", "no dimension 'sek'.*seq"),
        (LITERAL, SHAPES, "seq_513", r"seq=513 .* bounds, 4 to 512"),
        (LITERAL, SHAPES, "seq_512", None),
        # What a file does not say by itself is known when the model is built.
        ("from _shapes import SEQ\n", SHAPES, "sek_8", None),
        ('from torch.export import Dim as D\nSEQ = D("seq")\n', SHAPES, "sek_8", None),
        ('TOP = 512\nSEQ = torch.export.Dim("seq", max=TOP)\n', SHAPES, "seq_513", None),
        ("", "    def __getattr__(self, name): ...\n", "seq_8", None),
    ],
    ids=["none", "name", "bounds", "fits", "imported", "renamed", "computed", "passed on"],
)
def test_a_size_that_cannot_be_is_refused_from_the_text_of_a_model_if_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: str, end: str, size: str, said: str | None
):
    code = "import torch\n" + top + "class Net:\n"
    code += "    def get_eager_model(self): ...\n    def get_example_inputs(self): ...\n"
    (tmp_path / "growing.py").write_text(code + end)
    monkeypatch.setenv("SME2_MODELS", str(tmp_path))
    with pytest.raises(ExportError, match=said) if said else nullcontext():
        parse_variant(f"growing.size_{size}-fp32")
