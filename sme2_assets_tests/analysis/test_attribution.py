"""Rows of a run find their nodes: in real traces, and whatever XNNPACK fuses or inserts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.attribution import COLUMNS, STATES, align
from sme2_assets.analysis.timeline import timeline_rows
from sme2_assets.etdump import read_etdump
from sme2_assets.evidence.operators import Delegate, Node, ProgramOperators
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.archive import VARIANTS

# Node kind and the row it is run as. The kinds of the first table never vanish, and are never made up.
LASTING = {
    "XNNConv2d": "Convolution (NHWC, F32) IGEMM",
    "XNNDepthwiseConv2d": "Convolution (NHWC, F32) DWConv",
    "XNNFullyConnected": "Fully Connected (NC, PF32) GEMM",
    "XNNMaxPooling2d": "Max Pooling (NHWC, F32)",
    "XNNSoftmax": "Softmax (NC, F32)",
}
PASSING = {
    "XNNClamp": "Clamp (NC)",
    "XNNHardswish": "HardSwish (NC)",
    "XNNAdd": "Add (ND)",
    "XNNConvert": "Convert (NC)",
    "XNNStaticTranspose": "Transpose (ND, X32)",
}
NAMES = {**LASTING, **PASSING}
INSERTIONS = ("Transpose (ND, X32)", "Convert (NC)", "Pack LH (X32)")

# Of these it is settled what they are.
SETTLED = ("exact", "aligned", "inserted")


def node(kind: str, number: int = 0, *, inserted: bool = False, module: str | None = None) -> Node:
    spatial = kind in ("XNNConv2d", "XNNDepthwiseConv2d")
    return Node(
        kind=kind,
        edge_ops=[f"edge.{number}"],
        module=None if inserted else module or f"layer.{number}",
        module_type="Layer",
        source=None if inserted else f"model.py:{number}",
        code=None if inserted else f"x = self.layer[{number}](x)",
        input_shapes=[[1, 8, 8, 4]],
        output_shapes=[[1, 8, 8, 4]],
        data_types=["fp32", "fp32"],
        macs=None,
        groups=1 if spatial else None,
        kernel=[3, 3] if spatial else None,
        stride=[1, 1] if spatial else None,
        inserted=inserted,
        debug_handle=number,
    )


def program(*nodes: Node, portable: Sequence[Node] = ()) -> ProgramOperators:
    return ProgramOperators(
        delegates=[Delegate(backend="XnnpackBackend", nodes=list(nodes))], portable=list(portable)
    )


def rows(names: Sequence[str], backend: str = "xnnpack") -> pd.DataFrame:
    return pd.DataFrame(
        {
            "backend": backend,
            "delegate": pd.array([0 if backend == "xnnpack" else None] * len(names), dtype="Int64"),
            "position": pd.array(range(len(names)), dtype="Int64"),
            "name": [
                f"{name} #{number + 1}" if backend == "xnnpack" else name for number, name in enumerate(names)
            ],
        }
    )


def states(frame: pd.DataFrame) -> list[str]:
    return frame["attribution"].tolist()


def test_rows_in_the_order_of_the_nodes_are_aligned_with_all_their_facts() -> None:
    frame = align(
        program(node("XNNConv2d", 1), node("XNNSoftmax", 2)), rows([NAMES["XNNConv2d"], NAMES["XNNSoftmax"]])
    )
    assert tuple(frame.columns) == COLUMNS
    assert states(frame) == ["aligned", "aligned"]
    first = frame.iloc[0]
    assert (first["node_kind"], first["module"], first["source"]) == ("XNNConv2d", "layer.1", "model.py:1")
    assert (first["input_shape"], first["kernel_size"], first["groups"]) == ("1x8x8x4", "3x3", 1)
    assert frame.iloc[1]["kernel_size"] is None


@pytest.mark.parametrize(
    ("nodes", "count", "macs"),
    [(1, 1, 3), (1, 30, 0), (2, 2, 6), (2, 5, 0)],
)
def test_the_work_of_a_node_is_done_once_however_many_rows_it_might_be(
    nodes: int, count: int, macs: int
) -> None:
    alike = [node("XNNFullyConnected", 1).model_copy(update={"macs": 3}) for _ in range(nodes)]
    frame = align(program(*alike), rows([NAMES["XNNFullyConnected"]] * count))
    assert frame["macs"].sum() == macs
    assert frame["macs"].sum() <= sum(each.macs or 0 for each in alike)


def test_a_pointwise_convolution_is_found_as_fully_connected_and_a_wide_one_is_not() -> None:
    wide = node("XNNConv2d", 1)
    pointwise = Node(**{**vars(wide), "kernel": [1, 1], "module": "pointwise"})
    frame = align(program(wide, pointwise), rows(["Fully Connected (NC, F32) GEMM"]))
    assert frame["module"].tolist() == ["pointwise"]


def test_what_flows_is_looked_for_behind_what_was_fused_away() -> None:
    flow = {1: (["input"], ["a"]), 2: (["a"], ["b"]), 3: (["b"], ["c"]), 4: (["b", "c"], ["output"])}
    kinds = {1: "XNNConv2d", 2: "XNNClamp", 3: "XNNConv2d", 4: "XNNAdd"}
    nodes = [
        node(kinds[number], number).model_copy(update={"reads": reads, "writes": writes})
        for number, (reads, writes) in flow.items()
    ]
    fused = align(program(*nodes), rows([NAMES["XNNConv2d"], NAMES["XNNConv2d"], NAMES["XNNAdd"]]))
    assert fused["reads"].tolist() == [["input"], ["a"], ["a", "c"]], "the activation has no row"
    assert fused["writes"].tolist() == [["a"], ["c"], ["output"]]
    untold = align(program(node("XNNConv2d", 1)), rows([NAMES["XNNConv2d"]]))
    assert untold["writes"].tolist() == [[]], "as in programs of earlier releases"


def test_a_fused_activation_leaves_its_neighbours_aligned() -> None:
    nodes = [node("XNNConv2d", 1), node("XNNClamp", 2), node("XNNConv2d", 3)]
    frame = align(program(*nodes), rows([NAMES["XNNConv2d"]] * 2))
    assert frame["module"].tolist() == ["layer.1", "layer.3"]


def test_a_quantised_activation_run_by_table_is_the_activation_and_not_its_conversions() -> None:
    nodes = [
        node("XNNFullyConnected", 1),
        node("XNNConvert", 2, inserted=True),
        node("XNNHardswish", 3),
        node("XNNConvert", 4, inserted=True),
        node("XNNFullyConnected", 5),
    ]
    fully_connected = NAMES["XNNFullyConnected"]
    frame = align(program(*nodes), rows([fully_connected, "Invalid Unary Op", fully_connected]))
    assert frame["module"].tolist() == ["layer.1", "layer.3", "layer.5"]
    assert set(states(frame)) == {"aligned"}


def test_rows_that_are_no_node_are_inserted_or_unknown() -> None:
    frame = align(
        program(node("XNNFullyConnected", 1)),
        rows(["Pack LH (X32)", NAMES["XNNFullyConnected"], "Convert (NC)", "Never Heard Of (NC)"]),
    )
    assert states(frame) == ["inserted", "aligned", "inserted", "none"]
    assert frame["module"].tolist() == [None, "layer.1", None, None]


def test_a_transpose_that_no_line_asked_for_is_inserted_and_has_its_shape() -> None:
    frame = align(program(node("XNNStaticTranspose", inserted=True)), rows(["Transpose (ND, X32)"]))
    assert states(frame) == ["inserted"]
    assert frame["output_shape"].tolist() == ["1x8x8x4"]


def test_of_two_nodes_and_one_row_neither_is_guessed() -> None:
    nodes = [node("XNNClamp", 1, module="a"), node("XNNClamp", 2, module="b")]
    frame = align(program(*nodes), rows([NAMES["XNNClamp"]]))
    assert states(frame) == ["ambiguous"]
    assert frame["candidates"].tolist() == [["XNNClamp a", "XNNClamp b"]]
    row = frame.iloc[0]
    assert (row["node_kind"], row["module"], row["source"]) == ("XNNClamp", None, None)


def test_of_one_node_and_two_rows_neither_is_guessed() -> None:
    frame = align(program(node("XNNStaticTranspose", 1)), rows([NAMES["XNNStaticTranspose"]] * 2))
    assert states(frame) == ["ambiguous", "ambiguous"]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_concatenation_is_one_node_however_many_copies_it_is_run_as(copies: int) -> None:
    cat = Node(**{**vars(node("XNNConcatenate3", 1)), "input_shapes": [[1], [2], [3]]})
    names = [*["Copy (NC, X32)"] * copies, NAMES["XNNSoftmax"]]
    frame = align(program(cat, node("XNNSoftmax", 2)), rows(names))
    assert set(states(frame)) == {"aligned"}
    assert frame["module"].tolist() == [*["layer.1"] * copies, "layer.2"]


def test_portable_kernels_are_exact_by_order_and_name() -> None:
    portable = [
        node("aten::mean.out", 1),
        node("executorch_prim::et_view.default", 2),
        node("aten::sym_size.int", 3),
    ]
    frame = align(
        program(portable=portable),
        rows(["native_call_mean.out", "OPERATOR_CALL", "OPERATOR_CALL"], "portable"),
    )
    assert states(frame) == ["exact"] * 3
    assert frame["module"].tolist() == ["layer.1", "layer.2", "layer.3"]


def test_portable_kernels_of_another_program_are_not_attributed() -> None:
    frame = align(program(portable=[node("aten::mean.out", 1)]), rows(["native_call_add.out"], "portable"))
    assert states(frame) == ["none"]


def test_portable_kernels_that_ran_once_more_than_written_are_not_called_exact() -> None:
    portable = [node("aten::add.out", 1), node("aten::mean.out", 2)]
    names = ["native_call_add.out", "native_call_add.out", "native_call_mean.out"]
    frame = align(program(portable=portable), rows(names, "portable"))
    assert states(frame) == ["ambiguous", "ambiguous", "aligned"]


def test_a_delegate_that_the_program_does_not_have_leaves_its_rows_unattributed() -> None:
    frame = align(
        ProgramOperators(delegates=[], portable=[]),
        rows(["Convolution (NHWC, F32) IGEMM", "Transpose (ND, X32)"]),
    )
    assert set(states(frame)) <= {"none", "inserted"}
    assert frame["source"].isna().all()


def test_a_row_given_twice_is_refused() -> None:
    twice = pd.concat([rows(["Add (ND)"])] * 2)
    with pytest.raises(ValueError, match="distinct"):
        align(program(node("XNNAdd")), twice)


def test_what_nothing_in_the_program_explains_is_left_unexplained() -> None:
    frame = align(
        program(node("XNNConv2d", 1)),
        rows([NAMES["XNNConv2d"], "Transpose (ND, X32)", "Softmax (NC, F32)", "What"]),
    )
    assert states(frame) == ["aligned", "inserted", "none", "none"]


@st.composite
def histories(
    draw: st.DrawFn, *, drops: bool, inserts: bool
) -> tuple[list[Node], list[str], list[int | None]]:
    """Nodes, the rows XNNPACK made of them, and which node each row really is."""
    kinds = draw(st.lists(st.sampled_from(sorted(NAMES)), min_size=1, max_size=14))
    nodes = [node(kind, number) for number, kind in enumerate(kinds)]
    names: list[str] = []
    truth: list[int | None] = []
    for number, kind in enumerate(kinds):
        if inserts and draw(st.integers(0, 3)) == 0:
            names.append(draw(st.sampled_from(INSERTIONS)))
            truth.append(None)
        if not (drops and kind in PASSING and draw(st.booleans())):
            names.append(NAMES[kind])
            truth.append(number)
    return nodes, names, truth


def _found(frame: pd.DataFrame) -> list[int | None]:
    return [
        int(str(module).removeprefix("layer.")) if state == "aligned" else None
        for module, state in zip(frame["module"], frame["attribution"], strict=True)
    ]


@given(histories(drops=False, inserts=False))
def test_without_fusion_and_insertion_every_row_is_aligned_and_right(
    history: tuple[list[Node], list[str], list[int | None]],
) -> None:
    nodes, names, truth = history
    assert _found(align(program(*nodes), rows(names))) == truth


@given(st.one_of(histories(drops=True, inserts=False), histories(drops=False, inserts=True)))
@settings(max_examples=120)
def test_what_is_called_aligned_or_inserted_is_right_when_there_were_only_fusions_or_only_insertions(
    history: tuple[list[Node], list[str], list[int | None]],
) -> None:
    nodes, names, truth = history
    frame = align(program(*nodes), rows(names))
    for state, found, real in zip(frame["attribution"], _found(frame), truth, strict=True):
        assert state != "aligned" or found == real
        assert state != "inserted" or real is None
        assert state != "none"


@given(histories(drops=True, inserts=True))
@settings(max_examples=120)
def test_a_lasting_row_is_aligned_and_right_whatever_was_fused_and_inserted(
    history: tuple[list[Node], list[str], list[int | None]],
) -> None:
    nodes, names, truth = history
    frame = align(program(*nodes), rows(names))
    for name, state, found, real in zip(names, frame["attribution"], _found(frame), truth, strict=True):
        if name in LASTING.values():
            assert (state, found) == ("aligned", real)


@given(
    st.lists(st.sampled_from([*sorted(NAMES), "XNNConcatenate2", "XNNUnheardOf"]), max_size=10),
    st.lists(st.sampled_from([*NAMES.values(), *INSERTIONS, "Copy (NC, X8)", "???", ""]), max_size=10),
)
def test_every_row_is_in_one_state_and_no_node_is_given_away_twice(
    kinds: list[str], names: list[str]
) -> None:
    given_rows = rows(names)
    frame = align(program(*(node(kind, number) for number, kind in enumerate(kinds))), given_rows)
    assert len(frame) == len(names)
    assert frame["position"].tolist() == given_rows["position"].tolist()
    assert set(states(frame)) <= set(STATES)
    found = [number for number in _found(frame) if number is not None]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


Traced = Callable[[ExportedModel, Sequence[str], str], pd.DataFrame]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """The operators of a traced run, with their times."""

    def run(model: ExportedModel, runner: Sequence[str], sme2: str) -> pd.DataFrame:
        trace = tmp_path / f"{model.variant}-{sme2}.etdump"
        command = [*runner, "--model", str(model.pte), "--pass", "etdump"]
        command += [part for path in model.inputs for part in ("--input", str(path))]
        command += ["--warmup", "1", "--iterations", "1", "--threads", "1", "--etdump", str(trace)]
        command += ["--result", str(tmp_path / "result.json"), "--outputs", str(tmp_path / "outputs")]
        environment = {**os.environ, "SME2_RUNNER_SME2": sme2}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        timeline = timeline_rows(read_etdump(trace), warmup=0)
        return timeline[(timeline["kind"] == "operator") & ~timeline["is_warmup"]]

    return run


@pytest.mark.parametrize(
    "key", [*VARIANTS, pytest.param("mobilenet_v3_small-fp32", marks=pytest.mark.thorough)]
)
def test_every_row_of_a_real_run_is_attributed_and_all_work_is_found(
    exported: Callable[[str], ExportedModel], traced: Traced, runner_binary: RunnerBinary, key: str
) -> None:
    model = exported(key)
    operators = traced(model, [str(runner_binary.path)], "off")
    frame = align(ProgramOperators.read(model.operators), operators)
    assert frame["attribution"].isin(SETTLED).all()
    assert frame["macs"].sum() == read_manifest(model.manifest).macs
    multiplying = operators["category"].isin(["CONV", "GEMM"]).to_numpy()
    assert frame["macs"].notna().tolist() == multiplying.tolist()


@pytest.mark.parametrize("key", ["toy_cnn-fp32", "toy_cnn-int8"])
def test_a_run_with_sme2_has_the_same_sources_as_one_without(
    exported: Callable[[str], ExportedModel], traced: Traced, emulated_command: list[str], key: str
) -> None:
    model = exported(key)
    program_operators = ProgramOperators.read(model.operators)
    on, off = (traced(model, emulated_command, sme2) for sme2 in ("on", "off"))
    assert (on["sme2_evidence"] == "name").any()
    assert not (off["sme2_evidence"] == "name").any()
    frames = [align(program_operators, arm) for arm in (on, off)]
    assert frames[0]["attribution"].isin(SETTLED).all()
    pd.testing.assert_frame_equal(*frames)
