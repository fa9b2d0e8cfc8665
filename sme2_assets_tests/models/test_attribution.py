"""What an export says about its operators: every node with its source line, shapes and work."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sme2_assets
from sme2_assets.errors import EvidenceError, ExportError
from sme2_assets.evidence.operators import Node, ProgramOperators
from sme2_assets.models import attribution
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.export import export_model, export_variant
from sme2_assets.models.lowering import build_model
from sme2_assets.models.progress import Progress
from sme2_assets.models.provenance import short_path
from sme2_assets.models.registry import model_spec
from sme2_assets_tests.models import small

PACKAGE_ROOT = Path(sme2_assets.__file__).resolve().parents[1]
# From the archive, of this run, and a large one.
VARIANTS = ("toy_cnn-fp32", "toy_cnn-fp16", "toy_cnn-int8", "joined-fp32", "joined-int8")
LARGE = [pytest.param("mobilenet_v3_small-fp32", marks=pytest.mark.thorough)]
EVERY_VARIANT = pytest.mark.parametrize("key", [*VARIANTS, *LARGE])

# The demo model as its source reads, layer by layer: kind, module, kernel, groups, and words of the line.
TOY_CNN = [
    ("XNNStaticTranspose", None, None, None, None),
    ("XNNConv2d", "stem.0.0", [3, 3], 1, "self.stem(image)"),
    ("XNNConv2d", "expand.0.0", [1, 1], 1, "self.expand(x)"),
    ("XNNHardswish", "expand.1", None, None, "self.expand(x)"),
    ("XNNDepthwiseConv2d", "depthwise.0.0", [3, 3], 96, "self.depthwise("),
    ("XNNHardswish", "depthwise.1", None, None, "self.depthwise("),
    ("XNNConv2d", "project.0", [1, 1], 1, "self.project("),
    ("XNNAdd", "", None, None, "x + self.project("),
    ("XNNConv2d", "grouped.0.0", [3, 3], 2, "self.grouped(x)"),
    ("XNNStaticTranspose", None, None, None, None),
    ("XNNStaticReshape", "", None, None, "_shuffle_channels("),
    ("XNNStaticTranspose", "", None, None, "_shuffle_channels("),
    ("XNNStaticReshape", "", None, None, "_shuffle_channels("),
    ("XNNStaticTranspose", None, None, None, None),
    ("XNNConv2d", "dense.0.0", [3, 3], 1, "self.dense(x)"),
    ("XNNMaxPooling2d", "pool", [2, 2], None, "self.pool("),
    ("XNNConv2d", "mix.0.0", [1, 1], 1, "self.mix(x)"),
    ("XNNHardswish", "mix.1", None, None, "self.mix(x)"),
    ("XNNStaticTranspose", None, None, None, None),
]


@pytest.fixture(scope="module")
def model(exported: Callable[[str], ExportedModel], own_artifacts: Path) -> Callable[[str], ExportedModel]:
    def made(key: str) -> ExportedModel:
        name, _, precision = key.rpartition("-")
        if name == "toy_cnn":
            return exported(key)
        if name == "joined":
            joined = small.spec(name, small.Joined, small.values(1, 4, 8, 8))
            return export_model(joined, small.variant(name, precision), own_artifacts, log=print)
        return export_variant(key, own_artifacts, log=print)

    return functools.cache(made)


@pytest.fixture(scope="module")
def program(model: Callable[[str], ExportedModel]) -> Callable[[str], ProgramOperators]:
    return lambda key: ProgramOperators.read(model(key).operators)


def nodes_of(program: ProgramOperators) -> list[Node]:
    return [node for delegate in program.delegates for node in delegate.nodes] + program.portable


def test_every_layer_of_the_demo_model_has_its_module_and_its_line(
    program: Callable[[str], ProgramOperators],
) -> None:
    toy = program("toy_cnn-fp32")
    assert [delegate.backend for delegate in toy.delegates] == ["XnnpackBackend", "XnnpackBackend"]
    found = toy.delegates[0].nodes
    assert [(node.kind, node.module, node.kernel, node.groups) for node in found] == [
        row[:4] for row in TOY_CNN
    ]
    for node, (*_, words) in zip(found, TOY_CNN, strict=True):
        assert (words is None) == node.inserted
        assert words is None or words in (node.code or "")
    assert [node.kind for node in toy.delegates[1].nodes] == ["XNNFullyConnected", "XNNSoftmax"]
    assert [(node.kind, node.module_type) for node in toy.portable] == [("aten::mean.out", "ToyCnnModule")]
    assert ".mean(dim=(2, 3))" in (toy.portable[0].code or "")


def test_what_was_fused_into_a_convolution_is_named_with_it(
    program: Callable[[str], ProgramOperators],
) -> None:
    stem = program("toy_cnn-fp32").delegates[0].nodes[1]
    assert stem.edge_ops == [
        "aten.convolution.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten.relu.default",
    ]


@pytest.mark.parametrize("key", ["joined-fp32", "joined-int8", *LARGE])
def test_an_activation_that_xnnpack_runs_by_itself_is_a_node_after_the_one_it_was_fused_into(
    program: Callable[[str], ProgramOperators], key: str
) -> None:
    nodes = program(key).delegates[0].nodes
    pairs = [(before, node) for before, node in itertools.pairwise(nodes) if node.kind == "XNNClamp"]
    assert pairs
    for before, clamp in pairs:
        assert before.kind == "XNNAdd"
        assert clamp.edge_ops
        assert not set(clamp.edge_ops) & set(before.edge_ops)
        assert clamp.input_shapes == clamp.output_shapes == before.output_shapes


@EVERY_VARIANT
def test_every_tensor_that_is_read_was_written_before_or_is_an_input(
    model: Callable[[str], ExportedModel], key: str
) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = attribution.describe_program(model(key).pte.read_bytes())
    [plan] = deserialize_pte_binary(model(key).pte.read_bytes()).program.execution_plan
    # What is written in one delegate and read in another is known by the same name there.
    writers = Counter(tensor for node in program.nodes for tensor in node.writes)
    assert max(writers.values()) == 1
    read = {tensor for node in program.nodes for tensor in node.reads}
    assert read - set(writers) == {f"v{number}" for number in plan.inputs}, "and no constant"
    assert set(writers) - read == {f"v{number}" for number in plan.outputs}
    assert all(node.reads and node.writes for node in program.nodes)
    if key.startswith("toy_cnn"):
        [add] = [node for node in program.nodes if node.kind == "XNNAdd"]
        stem = next(node for node in program.nodes if node.kind == "XNNConv2d")
        assert stem.writes[0] in add.reads, "the residual connection"
        assert program.portable[0].reads == program.delegates[0].nodes[-1].writes


@EVERY_VARIANT
def test_the_work_of_a_model_without_fused_layers_is_what_torch_counts(
    model: Callable[[str], ExportedModel], key: str
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    name, _, precision = key.rpartition("-")
    spec = small.spec(name, small.Joined, small.values(1, 4, 8, 8)) if name == "joined" else model_spec(name)
    built = build_model(spec, precision, Progress(key, print))
    with FlopCounterMode(display=False) as counter:
        built.inputs.call(built.model)
    # A multiply and an add count as two.
    assert 2 * (read_manifest(model(key).manifest).macs or 0) == counter.get_total_flops()


@EVERY_VARIANT
def test_a_source_is_a_line_of_a_file_within_its_package(
    program: Callable[[str], ProgramOperators], key: str
) -> None:
    for node in nodes_of(program(key)):
        assert node.inserted == (node.source is None), node
        if node.source is not None:
            file, line = re.fullmatch(r"(.+):(\d+)", node.source).groups()  # type: ignore[union-attr]
            text = (PACKAGE_ROOT / file).read_text().splitlines()[int(line) - 1]
            assert text.strip() == node.code


def test_quantisation_is_inserted_and_what_it_surrounds_keeps_its_source(
    program: Callable[[str], ProgramOperators],
) -> None:
    nodes = nodes_of(program("toy_cnn-int8"))
    conversions = [node for node in nodes if node.kind == "XNNConvert"]
    assert conversions
    for node in conversions:
        assert node.inserted
        expected = "dequantize" if node.data_types[-1] == "fp32" else "quantize"
        assert [name.split(".")[1] for name in node.edge_ops] == [f"{expected}_per_tensor"]
    modules = [node.module for node in nodes if node.kind == "XNNConv2d"]
    assert modules == [row[1] for row in TOY_CNN if row[0] == "XNNConv2d"]


def test_a_program_without_its_graph_has_nodes_and_work_but_no_sources(
    model: Callable[[str], ExportedModel], program: Callable[[str], ProgramOperators]
) -> None:
    alone = attribution.describe_program(model("toy_cnn-int8").pte.read_bytes())
    full = program("toy_cnn-int8")
    assert alone.macs == full.macs
    for node, known in zip(nodes_of(alone), nodes_of(full), strict=True):
        assert (node.kind, node.input_shapes, node.inserted) == (
            known.kind,
            known.input_shapes,
            known.inserted,
        )
        assert (node.module, node.source, node.code) == (None, None, None)


def test_a_file_outside_of_packages_is_known_by_its_name_alone(tmp_path: Path) -> None:
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert short_path(str(package / "model.py")) == "inner/model.py"
    assert short_path(str(tmp_path / "mine.py")) == "mine.py"
    assert short_path("/x/lib/python3/site-packages/timm/a.py") == "timm/a.py"
    assert short_path("../../secret/place.py") == "place.py"
    assert short_path("<eval_with_key>.1") == "<eval_with_key>.1"


def test_a_delegate_that_is_not_xnnpacks_own_format_is_refused() -> None:
    with pytest.raises(ExportError, match="not in the format"):
        attribution._xnnpack_graph(b"\0\0\0\0QQ00" + bytes(64))


def test_what_is_written_is_read_back(program: Callable[[str], ProgramOperators], tmp_path: Path) -> None:
    path = tmp_path / "operators.json"
    for each in map(program, VARIANTS):
        path.write_text(each.to_json())
        assert ProgramOperators.read(path) == each


def _without(key: str) -> Callable[[Any], Any]:
    def edit(document: Any) -> Any:
        del document["delegates"][0]["nodes"][0][key]
        return document

    return edit


def _with(key: str, value: Any) -> Callable[[Any], Any]:
    def edit(document: Any) -> Any:
        document["delegates"][0]["nodes"][0][key] = value
        return document

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda document: [], "schema is None"),
        (lambda document: {**document, "schema": 99}, "version 99"),
        (lambda document: {"schema": 1, "delegates": []}, "portable"),
        (lambda document: {**document, "delegates": {"a": 1}}, "delegates"),
        (lambda document: {**document, "delegates": ["a"]}, "delegates.0"),
        (lambda document: {**document, "portable": [None]}, "portable.0"),
        (_without("kind"), "kind: Field required"),
        (_with("kind", 7), "kind"),
        (_with("macs", -1), "macs"),
        (_with("macs", 2**70), "macs"),
        (_with("macs", True), "macs"),
        (_with("macs", 1.5), "macs"),
        (_with("kernel", "3x3"), "kernel"),
        (_with("input_shapes", [[1, "2"]]), "input_shapes.0.1"),
        (_with("input_shapes", 4), "input_shapes"),
        (_with("edge_ops", [1]), "edge_ops.0"),
        (_with("inserted", 0), "inserted"),
        (_with("source", "/home/somebody/model.py:3"), "absolute"),
        (_with("source", "C:\\Users\\somebody\\model.py:3"), "absolute"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused_with_its_reason(
    program: Callable[[str], ProgramOperators],
    tmp_path: Path,
    edit: Callable[[Any], Any],
    message: str,
) -> None:
    document = json.loads(program("toy_cnn-fp32").to_json())
    path = tmp_path / "operators.json"
    path.write_text(json.dumps(edit(copy.deepcopy(document))))
    with pytest.raises(EvidenceError, match=message) as raised:
        ProgramOperators.read(path)
    assert "operators.json" in raised.value.what
    assert raised.value.remedy


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "operators.json"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"not a JSON document|is not valid"):
        ProgramOperators.read(path)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="missing"):
        ProgramOperators.read(tmp_path / "operators.json")
