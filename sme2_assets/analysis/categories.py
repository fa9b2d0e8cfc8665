"""The one categoriser: what an operator's name in a trace says about it.

Every conclusion drawn from a name belongs here: operator type, data type, category, and whether the
name alone proves an SME2 kernel. Views, summaries, report and command line all take it from here.
Names themselves are never changed. Framework rows (`Method::execute`, `DELEGATE_CALL`, ...) are not
operators and do not belong here.

A name is parsed first and looked up whole, never guessed by substring, which would turn `Convert`
into a convolution and `Copy Sign` into data movement. A name that is not in the tables is `Other` and
has `known=False`, so that it can be counted and shown.

Two forms of names exist:

- XNNPACK: `<operator type> (<layout>, <data types>) <ukernel type> #<n>`, where everything after the
  type may be missing: `Convolution (NHWC, PF32) IGEMM #1`, `Pack LH (X8) #1`, `Add (ND) #2`.
- kernels outside delegates: `native_call_<operator>.<overload>`, as the kernels name themselves; the
  registry's form `aten::<operator>.<overload>` is understood too, with any library in front.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

Backend = Literal["xnnpack", "portable", "other delegate"]


class Category(StrEnum):
    """The five kinds of work a model's time is divided into."""

    CONV = "CONV"
    GEMM = "GEMM"
    DATA_MOVEMENT = "Data Movement"
    ELEMENTWISE = "Elementwise"
    OTHER = "Other"


@dataclass(frozen=True)
class OperatorClass:
    """What a name says.

    `dtype` has the data types as written in the name (`PF32`, or `QD8, F32, QC8W` for several), and
    `ukernel` is the kind of XNNPACK microkernel (`GEMM`, `IGEMM`, `DWConv`); None where the name has none.
    `sme2_evidence` is `name` where the name proves an SME or SME2 kernel. `none` proves nothing: such an
    operator may or may not have run on the SME unit.
    """

    op_type: str
    category: Category
    known: bool
    dtype: str | None
    ukernel: str | None
    sme2_evidence: Literal["name", "none"]


#: XNNPACK makes an operator of these packed types only where it has an SME or SME2 kernel for it, so the
#: type proves the kernel. `QP8` is packed too, but has NEON kernels (dot product, I8MM) as well as SME2
#: ones and appears on CPUs without SME: it proves nothing.
SME2_DTYPES = frozenset({"PF32", "PF16", "PQS8"})


# 1x1 convolutions with stride 1 run, and are reported, as Fully Connected: the trace cannot tell them apart.
# Spellings of earlier versions are kept: traces outlive them.
_XNNPACK_TYPES: Mapping[Category, frozenset[str]] = {
    Category.CONV: frozenset({"Convolution", "Deconvolution"}),
    Category.GEMM: frozenset(
        {
            "Batch Matrix Multiply",
            "Dynamic Fully Connected",
            "Fully Connected",
            "Scaled Dot Attention",
            "Scaled Dot-Product Attention",
        }
    ),
    # Convert changes layout, precision or quantisation and computes nothing. A concatenation or a split
    # is reported as one Copy per part.
    Category.DATA_MOVEMENT: frozenset(
        {
            "Batch to Space",
            "Channel Pad",
            "Channel Shuffle",
            "Concatenate",
            "Constant Pad",
            "Convert",
            "Copy",
            "Depth To Space",
            "DepthToSpace",
            "Fuse Dims",
            "Pack LH",
            "Slice",
            "Space To Depth",
            "Split",
            "Split Dims",
            "Static Expand Dims",
            "Static Reshape",
            "Transpose",
        }
    ),
    Category.ELEMENTWISE: frozenset(
        {
            "Abs",
            "Add",
            "ApproxGELU",
            "ATan2",
            # XNNPACK's spelling in its table of unary operators; older tables have it right.
            "Bankders Rounding",
            "Bankers Rounding",
            "Binary Elementwise",
            "Bitwise And",
            "Bitwise Not",
            "Bitwise Or",
            "Bitwise Xor",
            "Ceiling",
            "Clamp",
            "Copy Sign",
            "Cosine",
            "Count Leading Zeros",
            "Cube Root",
            "Divide",
            "ELU",
            "Exp",
            "Floor",
            "GELU",
            "HardSwish",
            "Leaky ReLU",
            # What XNNPACK calls a quantised operator that it runs by table lookup.
            "Invalid Binary Op",
            "Invalid Unary Op",
            "LeakyReLU",
            "Log",
            "Maximum",
            "Minimum",
            "Modulus",
            "Multiply",
            "Negate",
            "Normalize",
            "PReLU",
            "Population Count",
            "Power",
            "Reciprocal Square Root",
            "RoPE",
            "Shift Left",
            "Shift Right Arithmetic",
            "Shift Right Logical",
            "Sigmoid",
            "Sign",
            "Sine",
            "Softmax",
            "Square",
            "Square Root",
            "Squared Difference",
            "Subtract",
            "TanH",
            "Tanh",
            "Truncation",
            "Unary Elementwise",
        }
    ),
    Category.OTHER: frozenset(
        {
            "ArgMax Pooling",
            "Average Pooling",
            "Global Average Pooling",
            "Global Sum Pooling",
            "Max Pooling",
            "Mean",
            "Mean Squared",
            "Reduce Max",
            "Reduce Min",
            "Resize Bilinear",
            "Sum",
            "Unpooling",
        }
    ),
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# First what the wheel's kernels have, then what PyTorch's schemas add and other builds may name.
_PORTABLE_OPERATORS: Mapping[Category, frozenset[str]] = {
    Category.CONV: _words(
        """
        convolution convolution_backward
        _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
        _conv_depthwise2d conv_depthwise3d conv_tbc slow_conv3d slow_conv_transpose2d slow_conv_transpose3d
        conv depthwise_conv1d depthwise_conv2d transpose_conv2d transposed_conv transposed_convolution
        w8a32_conv
        """
    ),
    Category.GEMM: _words(
        """
        addmm bmm linear mm mixed_linear mixed_mm scaled_dot_product_attention
        _int_mm _scaled_mm addbmm addmv baddbmm dot einsum matmul mv vdot
        addr bilinear chain_matmul ger inner linalg_matmul linalg_matrix_power linalg_multi_dot linalg_vecdot
        matrix_power outer tensordot
        _addmm_activation _dyn_quant_matmul_xbit _grouped_mm _scaled_grouped_mm
        _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm
        _scaled_dot_product_flash_attention_for_cpu
        custom_quantized_sdpa custom_sdpa quantized_moe_ffn sdpa_with_kv_cache
        batch_matmul fully_connected w8a32_linear
        _linear_fp_act_xbit_weight _linear_groupwise_xbit_weight_with_lut _linear_xbit_act_xbit_weight
        """
    ),
    # Nothing is computed: values are moved, selected, rearranged or converted, or memory is filled.
    Category.DATA_MOVEMENT: _words(
        """
        _clone_dim_order _d2h_copy _empty_dim_order _h2d_copy _to_copy _to_dim_order_copy
        alias_copy as_strided_copy clone copy copy_ detach_copy lift_fresh_copy
        cat diagonal_copy expand_copy flip narrow_copy permute_copy pixel_shuffle pixel_unshuffle
        repeat repeat_interleave roll select_copy slice_copy split_copy split_with_sizes_copy
        squeeze_copy stack t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy
        view_as_real_copy view_copy
        gather index index_put index_put_ index_select masked_scatter masked_select
        scatter scatter_add select_scatter slice_scatter
        constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d
        arange empty fill full full_like ones scalar_tensor zeros
        dequantize_per_channel dequantize_per_tensor dequantize_per_token
        quantize_per_channel quantize_per_tensor quantize_per_token
        update_cache update_cache_with_indices
        et_copy_index et_view
        idma_copy idma_load idma_store im2row requantize transposed_im2row
        """
    ),
    # Also operators that work along a row and keep the shape: softmax and normalisation.
    Category.ELEMENTWISE: _words(
        """
        _conj_physical abs acos acosh add asin asinh atan atan2 atanh
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
        ceil clamp cos cosh div elu eq erf exp expm1 floor floor_divide fmod ge gelu glu gt hardtanh
        isinf isnan le leaky_relu log log10 log1p log2 logical_and logical_not logical_or logical_xor
        logit lt masked_fill maximum minimum mul native_dropout ne neg pow reciprocal relu remainder
        round rsqrt rsub sigmoid sign sin sinh sqrt sub tan tanh tril trunc where
        _log_softmax _softmax
        _native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm native_layer_norm
        addcdiv addcmul angle celu clamp_max clamp_min clip conj_physical copysign deg2rad digamma equal erfc
        erfinv exp2 float_power fmax fmin frac frexp gcd hardshrink hardsigmoid hardswish heaviside hypot i0
        igamma igammac isfinite isneginf isposinf lcm ldexp lerp lgamma log_sigmoid log_softmax logaddexp
        logaddexp2 mish mvlgamma nan_to_num nextafter polygamma positive prelu rad2deg relu6 rrelu selu sgn
        signbit silu sinc softmax softplus softshrink square threshold triu true_divide xlogy
        batch_norm group_norm layer_norm native_batch_norm rms_norm
        activation rope
        """
    ),
    # Pooling, reductions, scans, searches, resampling, look-ups, transforms, random numbers.
    Category.OTHER: _words(
        """
        _adaptive_avg_pool2d avg_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d avg_pool1d avg_pool3d max_pool2d
        allclose amax amin any argmax argmin max mean min prod sum var var_mean
        all aminmax count_nonzero linalg__powsum linalg_vector_norm logsumexp nansum norm special_logsumexp
        std std_mean
        choose_qparams choose_qparams_per_token_asymmetric
        cumsum nonzero sort topk
        _upsample_bilinear2d_aa grid_sampler_2d upsample_bilinear2d upsample_nearest2d
        embedding embedding_byte embedding_xbit _embedding_xbit _shared_embedding_xbit
        _cdist_forward _pdist_forward
        _fft_c2r _fft_r2c fast_hadamard_transform
        channelwise_gated_delta_rule gated_delta_rule w8a32_gru
        rand randn
        """
    ),
}

_TABLES: Mapping[Backend, Mapping[str, Category]] = {
    "xnnpack": {name: category for category, names in _XNNPACK_TYPES.items() for name in names},
    "portable": {name: category for category, names in _PORTABLE_OPERATORS.items() for name in names},
}

_XNNPACK_NAME = re.compile(
    r"(?P<op_type>[^(]+?)(?: \((?P<types>[^()]*)\)(?: (?P<ukernel>[^#()]+?))?)?(?: #\d+)?", re.ASCII
)
_XNNPACK_NUMBER = re.compile(r"[^#]+ #\d+", re.ASCII)
_PORTABLE_NAME = re.compile(r"(?:native_call_)?(?:\w+::)?(?P<op_type>\w+)(?:\.\w+)?", re.ASCII)
_BITS = re.compile(r"\d+bit", re.ASCII)
# What backends add to the name of an operator that they have for one layout and quantisation:
# `quantized_conv2d_nhwc_dilated_asym8sxsym8s_asym8s`.
_SPECIALISED = re.compile(
    r"^quantized_|(?:_(?:nchw|nhwc|ncl|nlc|depthwise|dilated))*(?:_a?sym\d+[su]\w*)?$", re.ASCII
)


def is_xnnpack_name(name: str) -> bool:
    """Whether a delegate's row is XNNPACK's: ExecuTorch numbers only the names of XNNPACK's rows."""
    return _XNNPACK_NUMBER.fullmatch(name) is not None


@lru_cache(maxsize=16384)
def classify(name: str, backend: Backend) -> OperatorClass:
    """What the name of an operator row says; any text is accepted, and an unknown one is marked as such."""
    if backend == "other delegate":
        return _unreadable(name)
    return _classify_xnnpack(name) if backend == "xnnpack" else _classify_portable(name)


def _classify_xnnpack(name: str) -> OperatorClass:
    match = _XNNPACK_NAME.fullmatch(name)
    if match is None:
        return _unreadable(name)
    op_type = match["op_type"]
    dtypes = _data_types(match["types"] or "")
    category = _TABLES["xnnpack"].get(op_type)
    return OperatorClass(
        op_type=op_type,
        category=category or Category.OTHER,
        known=category is not None,
        dtype=", ".join(dtypes) or None,
        ukernel=match["ukernel"],
        sme2_evidence="name" if SME2_DTYPES.intersection(dtypes) else "none",
    )


def _data_types(types: str) -> list[str]:
    """The data types of `NHWC, PF32`: all but the layout, which begins with the batch, N."""
    return [word for word in (part.strip() for part in types.split(",")) if word and word[0] != "N"]


def _classify_portable(name: str) -> OperatorClass:
    match = _PORTABLE_NAME.fullmatch(name)
    if match is None:
        return _unreadable(name)
    op_type = match["op_type"]
    category = _portable_category(op_type)
    return OperatorClass(op_type, category or Category.OTHER, category is not None, None, None, "none")


def _portable_category(op_type: str) -> Category | None:
    """By the tables, else by how names are formed.

    In PyTorch's schemas a trailing underscore marks the in-place form, `_copy` the copying form of a view,
    and `special_` the functions of one number.
    """
    table = _TABLES["portable"]
    plain = _SPECIALISED.sub("", _BITS.sub("xbit", op_type))
    for form in (op_type, op_type.removesuffix("_"), f"{op_type}_copy", plain):
        if form in table:
            return table[form]
    if op_type.endswith("_copy"):
        return Category.DATA_MOVEMENT
    return Category.ELEMENTWISE if op_type.startswith("special_") else None


def _unreadable(name: str) -> OperatorClass:
    return OperatorClass(name, Category.OTHER, False, None, None, "none")
