from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.registered import RegisteredKernel, registered_kernels, require_registered
from sme2_assets.errors import TraceError

# What a debug build writes to standard error, among the runtime's own lines.
LINUX_LOG = """\
I 00:00:00.000523 executorch:cpuinfo_utils.cpp:71] Reading file /sys/devices/soc0/image_version
Debug (XNNPACK): allocated 4096 bytes for packed weights in Fully Connected (NC, F32) operator
Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_1x8__asm_aarch64_neonfma_ld128'.
Note (XNNPACK): Using igemm microkernel 'xnn_pf32_igemm_minmax_ukernel_32x32__neonsme2'.
Note (XNNPACK): Using transposec microkernel 'xnn_x32_transposec_ukernel__4x4_aarch64_neon_tbl128'.
Note (XNNPACK): Using binary microkernel 'xnn_f32_vadd_ukernel__neon_u8'.
Note (XNNPACK): Using pack-lh microkernel 'xnn_x32_pack_lh_ukernel__neonsme2'.
Warning (XNNPACK): Using defaults
Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_1x8__asm_aarch64_neonfma_ld128'.
"""

SME = ("sme", "sme2")


def names(kernels: list[RegisteredKernel]) -> list[tuple[str, str]]:
    return [(kernel.operator, kernel.kernel) for kernel in kernels]


def test_every_kernel_of_a_log_is_listed_once_in_order():
    assert names(registered_kernels(LINUX_LOG)) == [
        ("gemm", "xnn_f32_gemm_minmax_ukernel_1x8__asm_aarch64_neonfma_ld128"),
        ("igemm", "xnn_pf32_igemm_minmax_ukernel_32x32__neonsme2"),
        ("transposec", "xnn_x32_transposec_ukernel__4x4_aarch64_neon_tbl128"),
        ("binary", "xnn_f32_vadd_ukernel__neon_u8"),
        ("pack-lh", "xnn_x32_pack_lh_ukernel__neonsme2"),
    ]


def test_the_names_of_registered_kernels_are_parsed():
    kernels = registered_kernels(LINUX_LOG)
    assert all(kernel.name.known for kernel in kernels)
    assert [kernel.name.isa for kernel in kernels] == ["neonfma", "sme2", "neon", "neon", "sme2"]
    assert [kernel.name.isa in SME for kernel in kernels] == [False, True, False, False, True]


@pytest.mark.parametrize(
    "line",
    [
        "Using dwconv unipass microkernel 'xnn_f32_dwconv_minmax_ukernel_9p8c__neonfma'",
        "11-15 04:12:01.123  812  812 I XNNPACK : Using dwconv unipass microkernel "
        "'xnn_f32_dwconv_minmax_ukernel_9p8c__neonfma'.",
        "          ----    Using dwconv  unipass microkernel 'xnn_f32_dwconv_minmax_ukernel_9p8c__neonfma'.",
        '[INFO] using dwconv unipass micro-kernel "xnn_f32_dwconv_minmax_ukernel_9p8c__neonfma"\r',
        "\x1b[32mNote (XNNPACK): Using dwconv unipass microkernel "
        "'xnn_f32_dwconv_minmax_ukernel_9p8c__neonfma'.\x1b[0m",
    ],
)
def test_what_stands_around_the_line_does_not_matter(line: str):
    (kernel,) = registered_kernels(f"before\n{line}\nafter\n")
    assert kernel.operator == "dwconv unipass"
    assert (kernel.name.family, kernel.name.tile, kernel.name.isa) == ("dwconv", "9p8c", "neonfma")


def test_two_lines_that_two_threads_wrote_into_one_are_both_read():
    line = "Using gemm microkernel 'xnn_a'.Note (XNNPACK): Using igemm microkernel 'xnn_b'."
    assert names(registered_kernels(line)) == [("gemm", "xnn_a"), ("igemm", "xnn_b")]


def test_a_line_that_was_cut_off_names_no_kernel():
    assert registered_kernels("Using gemm microkernel 'xnn_f32_gemm_minmax_uk\n") == []


def test_a_kernel_with_a_name_nobody_knows_is_kept():
    (kernel,) = registered_kernels("Using frobnicate microkernel 'frob_1x8__quantum'.")
    assert (kernel.operator, kernel.kernel) == ("frobnicate", "frob_1x8__quantum")
    assert not kernel.name.known


def test_an_empty_log_says_which_build_is_needed():
    with pytest.raises(TraceError, match=r"(?s)trace\.log is empty.*built from source.*XNN_LOG_LEVEL=4"):
        require_registered(" \n", "trace.log")


def test_a_log_of_another_matter_is_an_error_too():
    with pytest.raises(TraceError, match=r"trace\.log names no microkernel"):
        require_registered("Model executed successfully.\n", "trace.log")


def test_a_log_with_kernels_passes():
    assert require_registered(LINUX_LOG, "trace.log") == registered_kernels(LINUX_LOG)


@given(st.text())
def test_no_text_makes_it_fail(text: str):
    registered_kernels(text)
    registered_kernels(f"Using {text} microkernel '{text}'.")
