"""The categoriser against names from elsewhere: the installed runtime's own tables and real traces."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis import categories
from sme2_assets.analysis.categories import Backend, Category, OperatorClass, classify

CONV, GEMM, MOVE = Category.CONV, Category.GEMM, Category.DATA_MOVEMENT
ELEMENTWISE, OTHER = Category.ELEMENTWISE, Category.OTHER


def _executorch() -> Path:
    spec = find_spec("executorch")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def _texts(library_stem: str, pattern: bytes) -> set[str]:
    """The NUL-terminated texts of an installed library that match a pattern as a whole."""
    (library,) = (_executorch() / "lib").glob(f"{library_stem}.*")
    return {
        text.decode() for text in re.findall(rb"(?<=\x00)" + pattern + rb"(?=\x00)", library.read_bytes())
    }


def _xnnpack_types_of_the_wheel() -> set[str]:
    types = _texts(
        "libexecutorch_backend_xnnpack",
        rb"[A-Z][A-Za-z0-9 -]+ \((?:N[CDHT][A-Z0-9]*|X[0-9]+)(?:, [A-Z0-9_]+)*\)",
    )
    # The linker stores a text that ends another one only there: "Fully Connected (NC, F32)" is found
    # inside "Dynamic Fully Connected (NC, F32)" alone.
    return types | {name.removeprefix("Dynamic ") for name in types}


def _kernels_of_the_wheel() -> set[str]:
    names: set[str] = set()
    for stem in ("libexecutorch_kernels_optimized", "libexecutorch_kernels_quantized"):
        names |= _texts(
            stem, rb"(?:native_call_|(?:aten|dim_order_ops|et_copy|quantized_decomposed)::)[\w.:]+"
        )
    return names


def _operators_of_the_wheels_lists() -> set[str]:
    names: set[str] = set()
    for folder in ("portable", "quantized"):
        for listing in (_executorch() / "kernels" / folder).glob("*.yaml"):
            names |= set(re.findall(r"^- (?:op|func): ([\w:.]+)", listing.read_text(), flags=re.MULTILINE))
    return names


def _unknown(names: set[str], backend: Backend) -> list[str]:
    return sorted(name for name in names if not classify(name, backend).known)


def test_every_operator_type_of_the_installed_xnnpack_is_known() -> None:
    types = _xnnpack_types_of_the_wheel()
    assert len(types) > 150
    assert {"Convolution (NHWC, PF32)", "Fully Connected (NC, F32)", "Add (ND)", "Pack LH (X32)"} <= types
    assert _unknown(types, "xnnpack") == []


def test_every_kernel_of_the_installed_libraries_is_known() -> None:
    names = _kernels_of_the_wheel()
    assert len(names) > 400
    assert {"native_call_addmm.out", "aten::linear.out", "native_call_copy_"} <= names
    assert _unknown(names, "portable") == []


def test_every_operator_of_the_installed_operator_lists_is_known() -> None:
    names = _operators_of_the_wheels_lists()
    assert len(names) > 200
    assert {"_softmax.out", "quantized_decomposed::mixed_mm.out", "et_copy::_h2d_copy.out"} <= names
    assert _unknown(names, "portable") == []


def test_every_packed_type_of_the_installed_xnnpack_is_decided_on() -> None:
    types = {token for name in _xnnpack_types_of_the_wheel() for token in re.findall(r"\b\w+\b", name)}
    packed = {token for token in types if re.fullmatch(r"(?:P|QP)[A-Z]*\d+\w*", token)}
    assert packed == {"PF32", "PF16", "PQS8", "QP8"}


# Copied from traces of real models, with SME2 (under emulation) and without.
SEEN_IN_TRACES: list[tuple[str, OperatorClass]] = [
    ("Convolution (NHWC, F32) IGEMM #1", OperatorClass("Convolution", CONV, True, "F32", "IGEMM", "none")),
    ("Convolution (NHWC, PF32) IGEMM #1", OperatorClass("Convolution", CONV, True, "PF32", "IGEMM", "name")),
    ("Convolution (NHWC, PF16) IGEMM #2", OperatorClass("Convolution", CONV, True, "PF16", "IGEMM", "name")),
    ("Convolution (NHWC, F16) DWConv #1", OperatorClass("Convolution", CONV, True, "F16", "DWConv", "none")),
    (
        "Deconvolution (NHWC, F32) Subconv2D #1",
        OperatorClass("Deconvolution", CONV, True, "F32", "Subconv2D", "none"),
    ),
    (
        "Fully Connected (NC, PF32) GEMM #1",
        OperatorClass("Fully Connected", GEMM, True, "PF32", "GEMM", "name"),
    ),
    (
        "Fully Connected (NC, F16) GEMM #1",
        OperatorClass("Fully Connected", GEMM, True, "F16", "GEMM", "none"),
    ),
    (
        "Batch Matrix Multiply (NC, PF16) GEMM #2",
        OperatorClass("Batch Matrix Multiply", GEMM, True, "PF16", "GEMM", "name"),
    ),
    (
        "Convolution (NHWC, PQS8, QS8, QC8W) IGEMM #1",
        OperatorClass("Convolution", CONV, True, "PQS8, QS8, QC8W", "IGEMM", "name"),
    ),
    ("Convolution (NHWC, QC8) DWConv #1", OperatorClass("Convolution", CONV, True, "QC8", "DWConv", "none")),
    (
        "Fully Connected (NC, PQS8, QC8W) GEMM #1",
        OperatorClass("Fully Connected", GEMM, True, "PQS8, QC8W", "GEMM", "name"),
    ),
    ("Convert (NC) #2", OperatorClass("Convert", MOVE, True, None, None, "none")),
    ("Transpose (ND, X32) #1", OperatorClass("Transpose", MOVE, True, "X32", None, "none")),
    ("Copy (NC, X16) #1", OperatorClass("Copy", MOVE, True, "X16", None, "none")),
    ("Softmax (NC, F32) #1", OperatorClass("Softmax", ELEMENTWISE, True, "F32", None, "none")),
    ("HardSwish (NC) #1", OperatorClass("HardSwish", ELEMENTWISE, True, None, None, "none")),
    ("Resize Bilinear (NHWC) #1", OperatorClass("Resize Bilinear", OTHER, True, None, None, "none")),
    ("Max Pooling (NHWC, F16) #1", OperatorClass("Max Pooling", OTHER, True, "F16", None, "none")),
]


@pytest.mark.parametrize(("name", "expected"), SEEN_IN_TRACES, ids=[name for name, _ in SEEN_IN_TRACES])
def test_a_name_seen_in_a_trace_is_read_in_all_its_parts(name: str, expected: OperatorClass) -> None:
    assert classify(name, "xnnpack") == expected


@pytest.mark.parametrize(
    ("name", "op_type", "category"),
    [
        ("native_call_convolution.out", "convolution", CONV),
        ("native_call_addmm.out", "addmm", GEMM),
        ("native_call_bmm.out", "bmm", GEMM),
        ("native_call__to_dim_order_copy.out", "_to_dim_order_copy", MOVE),
        ("native_call_slice_copy.Tensor_out", "slice_copy", MOVE),
        ("native_call_cat.out", "cat", MOVE),
        ("native_call__softmax.out", "_softmax", ELEMENTWISE),
        ("native_call_native_layer_norm.out", "native_layer_norm", ELEMENTWISE),
        ("native_call_mean.out", "mean", OTHER),
        ("native_call_embedding.out", "embedding", OTHER),
        ("native_call_copy_", "copy_", MOVE),
        ("native_call_llama::gated_delta_rule.out", "gated_delta_rule", OTHER),
        ("aten::add.out", "add", ELEMENTWISE),
        ("quantized_decomposed::quantize_per_tensor.out", "quantize_per_tensor", MOVE),
    ],
)
def test_a_portable_name_gives_its_operator(name: str, op_type: str, category: Category) -> None:
    assert classify(name, "portable") == OperatorClass(op_type, category, True, None, None, "none")


@pytest.mark.parametrize(
    "name", ["Convert (NC) #1", "Convert (NC, F32, QD8) #1", "Convert (NC, QS8, QC8) #3"]
)
def test_a_convert_is_data_movement_and_not_a_convolution(name: str) -> None:
    assert classify(name, "xnnpack").category is MOVE


def test_a_convolution_run_by_a_gemm_kernel_is_a_convolution() -> None:
    for ukernel in ("GEMM", "IGEMM", "SPMM", "VMulCAddC", "DWConv", "Conv2D HWC2CHW"):
        operator = classify(f"Convolution (NHWC, F32) {ukernel} #1", "xnnpack")
        assert (operator.category, operator.ukernel) == (CONV, ukernel)


def test_copying_a_sign_is_elementwise_and_copying_data_is_not() -> None:
    assert classify("Copy Sign (ND) #1", "xnnpack").category is ELEMENTWISE
    assert classify("Copy (NC, X32) #1", "xnnpack").category is MOVE


def test_a_resize_is_not_a_matrix_multiplication() -> None:
    assert classify("Resize Bilinear (NCHW) #1", "xnnpack").category is OTHER
    assert classify("native_call_upsample_bilinear2d.vec_out", "portable").category is OTHER


def test_addmm_is_a_matrix_multiplication_and_add_is_elementwise() -> None:
    assert classify("native_call_addmm.out", "portable").category is GEMM
    assert classify("native_call_add.out", "portable").category is ELEMENTWISE


@pytest.mark.parametrize(
    "name", ["Pack LH (X8) #1", "Slice (ND, X16) #1", "Depth To Space (NCHW2NHWC, X32) #1"]
)
def test_packing_slicing_and_rearranging_are_data_movement(name: str) -> None:
    assert classify(name, "xnnpack").category is MOVE


@pytest.mark.parametrize("name", ["cat", "clone", "_clone_dim_order", "expand_copy", "index", "gather"])
def test_portable_copies_are_data_movement(name: str) -> None:
    assert classify(f"native_call_{name}.out", "portable").category is MOVE


def test_max_of_a_tensor_is_a_reduction_and_maximum_of_two_is_elementwise() -> None:
    assert classify("native_call_max.unary_out", "portable").category is OTHER
    assert classify("native_call_maximum.out", "portable").category is ELEMENTWISE
    assert classify("Reduce Max (ND) Reduce #1", "xnnpack").category is OTHER
    assert classify("Maximum (ND) #1", "xnnpack").category is ELEMENTWISE


def test_square_roots_are_elementwise_and_a_mean_of_squares_is_a_reduction() -> None:
    assert classify("Reciprocal Square Root (NC) #1", "xnnpack").category is ELEMENTWISE
    assert classify("Mean Squared (ND) Reduce #1", "xnnpack").category is OTHER


def test_pooling_run_by_a_kernel_of_the_same_name_is_read_apart() -> None:
    operator = classify("Average Pooling (NHWC, F32) Average Pooling #1", "xnnpack")
    assert (operator.op_type, operator.ukernel) == ("Average Pooling", "Average Pooling")


def test_a_layout_with_a_digit_is_no_data_type() -> None:
    assert classify("Depth To Space (NCHW2NHWC, X16) #1", "xnnpack").dtype == "X16"


def test_several_data_types_stay_as_the_name_writes_them() -> None:
    assert classify("Fully Connected (NC, QD8, F32, QC4W) GEMM #1", "xnnpack").dtype == "QD8, F32, QC4W"


@pytest.mark.parametrize("dtypes", ["PF32", "PF16", "PQS8, QC8W", "PQS8, QS8, QC8W"])
def test_a_packed_type_with_no_kernel_but_sme_ones_is_evidence(dtypes: str) -> None:
    assert classify(f"Fully Connected (NC, {dtypes}) GEMM #1", "xnnpack").sme2_evidence == "name"


@pytest.mark.parametrize(
    "dtypes", ["F32", "F16", "QS8", "QP8, F32, QC8W", "QP8, F32, QB4W", "QPF32", "PF32X", "PF3", "BF16_F32"]
)
def test_other_types_prove_nothing(dtypes: str) -> None:
    assert classify(f"Fully Connected (NC, {dtypes}) GEMM #1", "xnnpack").sme2_evidence == "none"


def test_evidence_is_read_from_the_data_types_alone() -> None:
    assert classify("PF32 (NC, F32) PF32 #1", "xnnpack").sme2_evidence == "none"
    assert classify("native_call_PF32.out", "portable").sme2_evidence == "none"


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("Quantum Convolution (NHWC, F32) GEMM #1", "xnnpack"),
        ("Convolutions (NHWC, F32) #1", "xnnpack"),
        ("convolution (NHWC, F32) #1", "xnnpack"),
        ("Invalid", "xnnpack"),
        ("native_call_addmm.out", "xnnpack"),
        ("native_call_brand_new.out", "portable"),
        ("cadence::quantized_", "portable"),
        ("cortex_m::quantized_brand_new_nhwc_asym8s.out", "portable"),
        ("Convolution (NHWC, F32) IGEMM #1", "portable"),
        ("OPERATOR_CALL", "portable"),
        ("", "xnnpack"),
        ("", "portable"),
    ],
)
def test_an_unknown_name_is_other_and_says_so(name: str, backend: Backend) -> None:
    operator = classify(name, backend)
    assert (operator.category, operator.known) == (OTHER, False)


def test_an_unknown_operator_keeps_its_own_type_and_what_can_be_read_of_it() -> None:
    operator = classify("Brand New (NHWC, PF32) GEMM #7", "xnnpack")
    assert operator == OperatorClass("Brand New", OTHER, False, "PF32", "GEMM", "name")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("hardswish.out", ELEMENTWISE),
        ("hardswish_", ELEMENTWISE),
        ("silu.out", ELEMENTWISE),
        ("special_erfcx.out", ELEMENTWISE),
        ("special_logsumexp.out", OTHER),
        ("view_as_complex_copy.out", MOVE),
        ("baddbmm.out", GEMM),
        ("conv1d.out", CONV),
        ("std.correction_out", OTHER),
    ],
)
def test_names_that_the_wheel_does_not_have_are_known_all_the_same(name: str, category: Category) -> None:
    operator = classify(f"native_call_{name}", "portable")
    assert (operator.category, operator.known) == (category, True)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Scaled Dot Attention (NHTC, F32)", GEMM),
        ("Channel Pad (NC, X32)", MOVE),
        ("DepthToSpace (NCHW2NHWC, X32)", MOVE),
        ("Leaky ReLU (NC, QU8)", ELEMENTWISE),
        ("Tanh (NC, F16)", ELEMENTWISE),
        ("Truncation (NC, F32)", ELEMENTWISE),
    ],
)
def test_spellings_of_earlier_versions_of_xnnpack_are_known(name: str, category: Category) -> None:
    operator = classify(f"{name} #1", "xnnpack")
    assert (operator.category, operator.known) == (category, True)


# As their libraries register them.
OF_OTHER_LIBRARIES = {
    CONV: """
        cadence::quantized_conv1d_ncl.per_tensor_out
        cadence::quantized_conv2d_depthwise_nhwc.out
        cadence::quantized_conv2d_nchw.out
        cadence::quantized_conv2d_nhwc_depthwise_asym8sxsym8s_asym8s.per_tensor_out
        cadence::quantized_conv2d_nhwc_dilated_asym8uxsym8u_asym8u.per_tensor_out
        cadence::quantized_depthwise_conv1d_nlc.per_tensor_out
        cadence::transposed_convolution.out
        cortex_m::quantized_conv2d.out
        cortex_m::quantized_depthwise_conv2d.out
        cortex_m::quantized_transpose_conv2d.out
    """,
    GEMM: """
        aten::linalg_matmul.out
        aten::linalg_multi_dot.out
        aten::linalg_vecdot.out
        cadence::quantized_fully_connected_asym8sxasym8s_asym8s.per_tensor_out
        cadence::quantized_linear.out
        cadence::quantized_matmul_asym8uxasym8u_asym8u.out
        cortex_m::quantized_batch_matmul.out
        cortex_m::quantized_linear.out
        torchao::_linear_8bit_act_4bit_weight.out
        torchao::_linear_fp_act_6bit_weight.out
        torchao::_linear_groupwise_2bit_weight_with_lut.out
    """,
    MOVE: """
        aten::permute
        aten::view
        cadence::dequantize_per_tensor_asym16u.out
        cadence::im2row.out
        cadence::quantize_per_tensor_asym8s.out
        cadence::requantize.per_tensor_out
        cortex_m::pad.out
        cortex_m::transpose.out
    """,
    ELEMENTWISE: """
        cadence::quantized_add_asym8sxasym8s_asym8s.per_tensor_out
        cadence::quantized_layer_norm.per_tensor_out
        cadence::quantized_relu_asym8u_asym8u.per_tensor_out
        cortex_m::quantized_activation.out
        cortex_m::quantized_div.out
        cortex_m::softmax.out
    """,
    OTHER: """
        cadence::quantized_max_pool2d_nhwc.out
        cortex_m::quantized_avg_pool2d.out
        cortex_m::quantized_max_pool2d.out
        torchao::_embedding_4bit.out
        torchao::_shared_embedding_8bit.out
    """,
}


@pytest.mark.parametrize(
    ("name", "category"),
    [(name, each) for each, names in OF_OTHER_LIBRARIES.items() for name in names.split()],
)
def test_kernels_of_other_libraries_have_a_category(name: str, category: Category) -> None:
    operator = classify(name, "portable")
    assert (operator.category, operator.known) == (category, True)


def test_what_pytorch_tags_as_pointwise_or_reduction_is_known_as_such() -> None:
    torch = pytest.importorskip("torch")
    expected = {torch.Tag.pointwise: ELEMENTWISE, torch.Tag.reduction: OTHER}
    wrong = set()
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        name, _, overload = name.partition(".")
        # Forms for training are in no inference; `max` and `min` have both tags, a clone only copies.
        if (
            namespace != "aten"
            or name.endswith("backward")
            or name.startswith("__")
            or name in ("clone", "max", "min")
        ):
            continue
        operator = getattr(getattr(torch.ops.aten, name), overload or "default")
        for tag, category in expected.items():
            if (
                tag in operator.tags
                and classify(f"native_call_{name}.out", "portable").category is not category
            ):
                wrong.add(name)
    assert wrong == set()


@given(name=st.text(max_size=200), backend=st.sampled_from(["xnnpack", "portable"]))
def test_any_text_is_classified(name: str, backend: Backend) -> None:
    assert isinstance(classify(name, backend), OperatorClass)


def test_no_name_stands_in_two_categories() -> None:
    for table in (categories._XNNPACK_TYPES, categories._PORTABLE_OPERATORS):
        names = [name for group in table.values() for name in group]
        assert len(names) == len(set(names))
        assert set(table) == set(Category)
