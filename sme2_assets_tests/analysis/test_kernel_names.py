"""The kernel names of the installed library, of KleidiAI's headers, and of XNNPACK's rules.

`kernel_names/<architecture>.tsv` holds the parse of every kernel that the XNNPACK library for it exports;
`kernel_names/kleidiai.txt` the names of KleidiAI's headers, which PyTorch has on aarch64 alone. After a new
library or a change of the parser, write them anew and read the difference before it is committed. The library
is that of ExecuTorch's wheel for the architecture, here the installed one:

    python -m sme2_assets_tests.analysis.test_kernel_names LIBRARY
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.kernel_names import KernelName, parse_kernel
from sme2_assets.toolchain.elf import Elf
from sme2_assets.toolchain.sdk import fetch_sdk

GOLDEN = Path(__file__).parent / "kernel_names"
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
LIBRARY = "lib/libexecutorch_backend_xnnpack.so"
#: How many kernels a library exports at least. Most microkernels for x86_64 are not exported.
EXPORTED = {"aarch64": 500, "x86_64": 60}
#: The library of this host, and the one that cross-built runners use.
ARCHITECTURES = sorted({platform.machine(), "aarch64"} if platform.system() == "Linux" else {"aarch64"})

SME = ("sme", "sme2")


def exported_functions(library: Path) -> list[str]:
    return sorted(Elf(library.read_bytes()).functions())


def kernel_symbols(library: Path) -> list[str]:
    return [
        name
        for name in exported_functions(library)
        if name.startswith("kai_") or (name.startswith("xnn_") and "_ukernel" in name)
    ]


def line_of(symbol: str) -> str:
    kernel = parse_kernel(symbol)
    fields = (
        *(symbol, kernel.library, kernel.family, kernel.role, "_".join(kernel.data_types)),
        *(kernel.tile, kernel.isa, kernel.instruction),
    )
    return "\t".join(field or "-" for field in fields)


def golden_lines(architecture: str) -> list[str]:
    return (GOLDEN / f"{architecture}.tsv").read_text().splitlines()[1:]


def header_names() -> list[str]:
    return (GOLDEN / "kleidiai.txt").read_text().split()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def symbols(request: pytest.FixtureRequest, artifacts_dir: Path) -> tuple[str, list[str]]:
    """An architecture, and the kernels that the library for it exports."""
    installed = SITE_PACKAGES / "executorch"
    if (platform.system(), platform.machine()) != ("Linux", request.param):
        version = importlib.metadata.version("executorch")
        installed = fetch_sdk(version, f"Linux {request.param}", artifacts_dir / "tools", log=print).folder
    return request.param, kernel_symbols(installed / LIBRARY)


def test_every_kernel_symbol_of_the_library_is_known(symbols: tuple[str, list[str]]):
    architecture, names = symbols
    assert len(names) > EXPORTED[architecture]
    unknown = [symbol for symbol in names if not parse_kernel(symbol).known]
    assert unknown == []


def test_every_kernel_symbol_of_the_library_has_sensible_fields(symbols: tuple[str, list[str]]):
    for symbol in symbols[1]:
        kernel = parse_kernel(symbol)
        assert kernel.family, symbol
        assert kernel.role in ("compute", "pack", "query", "other"), symbol
        assert (kernel.isa in SME) == ("sme" in symbol or symbol == "kai_commit_za"), symbol
        assert (kernel.isa == "sme2") == ("sme2" in symbol), symbol
        assert (kernel.role == "query") == ("_get_" in symbol), symbol
        assert all(part in symbol for part in (*kernel.data_types, kernel.tile or "", kernel.family)), symbol


@pytest.mark.parametrize("architecture", EXPORTED)
def test_the_kernels_of_the_golden_file_are_parsed_as_reviewed(architecture: str):
    lines = golden_lines(architecture)
    assert len(lines) > EXPORTED[architecture]
    assert [line_of(line.split("\t")[0]) for line in lines] == lines


def test_the_golden_file_is_of_the_library(symbols: tuple[str, list[str]]):
    # A newer library may have more; what it has in common must be most of it, or the file is out of date.
    architecture, names = symbols
    reviewed = {line.split("\t")[0] for line in golden_lines(architecture)}
    assert len(reviewed & set(names)) > 0.5 * len(names)


HEADERS = SITE_PACKAGES / "torch/include/kai/ukernels"


def kernels_of_headers() -> list[str]:
    """None where PyTorch is for another CPU."""
    return sorted(path.stem for path in HEADERS.rglob("kai_*.h") if not path.stem.endswith("_interface"))


def test_every_kernel_of_kleidiais_headers_is_known():
    kernels = {*header_names(), *kernels_of_headers()}
    assert len(kernels) > 100
    for name in kernels:
        kernel = parse_kernel(name)
        assert kernel.known, name
        assert kernel.role == ("pack" if "_pack_" in name else "compute"), name
        assert (kernel.isa in SME) == ("_sme" in name), name
        # Nothing of the name is lost but the words that are the same for all.
        assert name.startswith(f"kai_{kernel.family}_"), name
        assert "_".join(kernel.data_types) in name, name


def known(
    library: str,
    family: str,
    role: str,
    data_types: str,
    tile: str | None,
    isa: str | None,
    instruction: str | None = None,
) -> KernelName:
    return KernelName(library, family, role, tuple(data_types.split()), tile, isa, instruction, known=True)


def xnn(
    family: str,
    data_types: str,
    tile: str | None,
    isa: str,
    instruction: str | None = None,
    role: str = "compute",
) -> KernelName:
    return known("xnnpack", family, role, data_types, tile, isa, instruction)


# Forms that the stripped library does not export, one or more of every kind that XNNPACK's rules give.
XNNPACK_NAMES = {
    "xnn_f32_gemm_minmax_ukernel_6x8__asm_aarch64_neonfma_cortex_a75_prfm": xnn(
        "gemm", "f32", "6x8", "neonfma"
    ),
    "xnn_f32_gemm_minmax_ukernel_4x8__asm_aarch32_neon_ld64": xnn("gemm", "f32", "4x8", "neon"),
    "xnn_f32_gemm_ukernel_4x4__scalar": xnn("gemm", "f32", "4x4", "scalar"),
    "xnn_f32_gemm_relu_ukernel_5x8__wasmsimd_splat": xnn("gemm", "f32", "5x8", "wasmsimd"),
    "xnn_f32_gemm_goi_minmax_ukernel_4x8__asm_aarch64_neonfma_ld128": xnn("gemm", "f32", "4x8", "neonfma"),
    "xnn_f32_gemminc_minmax_ukernel_6x8s4__neonfma": xnn("gemminc", "f32", "6x8s4", "neonfma"),
    "xnn_f32_igemm_minmax_ukernel_8x8s4__neon": xnn("igemm", "f32", "8x8s4", "neon"),
    "xnn_f32_qc8w_gemm_minmax_ukernel_6x8__asm_aarch64_neonfma_ld128": xnn(
        "gemm", "f32 qc8w", "6x8", "neonfma"
    ),
    "xnn_f32_qc4w_gemm_minmax_ukernel_6x16__neonfma_dup_ld64": xnn("gemm", "f32 qc4w", "6x16", "neonfma"),
    "xnn_f16_f32acc_gemm_minmax_ukernel_4x16__avx2_broadcast": xnn("gemm", "f16 f32acc", "4x16", "avx2"),
    "xnn_bf16_gemm_minmax_ukernel_4x8c8__neonbf16_bfdot": xnn("gemm", "bf16", "4x8c8", "neonbf16", "bfdot"),
    "xnn_bf16_gemm_minmax_ukernel_3x4c8__neonfma_zip": xnn("gemm", "bf16", "3x4c8", "neonfma"),
    "xnn_bf16_f32_gemm_minmax_ukernel_7x64c2__avx512bf16_broadcast": xnn(
        "gemm", "bf16 f32", "7x64c2", "avx512bf16"
    ),
    "xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2": xnn("gemm", "pf32", "32x32", "sme2"),
    "xnn_pf32_gemm_minmax_ukernel_32x32__neonsme": xnn("gemm", "pf32", "32x32", "sme"),
    "xnn_pf16_gemm_minmax_ukernel_32x32c2__neonsme2": xnn("gemm", "pf16", "32x32c2", "sme2"),
    "xnn_pf16_f16_igemm_minmax_fp16_ukernel_32x32c2__neonsme2": xnn("igemm", "pf16 f16", "32x32c2", "sme2"),
    "xnn_pqs8_qc8w_gemm_minmax_ukernel_32x32c4__neonsme2": xnn("gemm", "pqs8 qc8w", "32x32c4", "sme2"),
    "xnn_pqs8_qc8w_igemm_minmax_fp32_ukernel_32x32c4__neonsme2": xnn("igemm", "pqs8 qc8w", "32x32c4", "sme2"),
    "xnn_qp8_f32_qc4w_gemm_minmax_ukernel_16x64c4__neonsme2": xnn("gemm", "qp8 f32 qc4w", "16x64c4", "sme2"),
    "xnn_qp8_f32_qc4w_gemm_minmax_ukernel_8x8c16s2__neoni8mm_mstep2": xnn(
        "gemm", "qp8 f32 qc4w", "8x8c16s2", "neoni8mm"
    ),
    "xnn_qp8_f32_qb4w_gemm_minmax_ukernel_1x4c8s2__aarch64_neondot": xnn(
        "gemm", "qp8 f32 qb4w", "1x4c8s2", "neondot", "dot"
    ),
    "xnn_qs8_qc8w_gemm_minmax_fp32_ukernel_4x16c4__asm_aarch64_neondot_cortex_a55": xnn(
        "gemm", "qs8 qc8w", "4x16c4", "neondot", "dot"
    ),
    "xnn_qs8_qc8w_gemm_minmax_fp32_ukernel_4x16c8__neoni8mm": xnn("gemm", "qs8 qc8w", "4x16c8", "neoni8mm"),
    "xnn_qs8_gemm_minmax_rndnu_ukernel_2x8c8__asm_aarch64_neon_mull": xnn(
        "gemm", "qs8", "2x8c8", "neon", "mull"
    ),
    "xnn_qu8_gemm_minmax_rndnu16_ukernel_4x16__neon_mlal_lane": xnn("gemm", "qu8", "4x16", "neon", "mlal"),
    "xnn_qd8_f16_qc4w_gemm_minmax_ukernel_1x16c4__neondotfp16arith": xnn(
        "gemm", "qd8 f16 qc4w", "1x16c4", "neondotfp16arith", "dot"
    ),
    "xnn_qd8_f32_qb4w_gemm_minmax_ukernel_4x16c4__neondot": xnn(
        "gemm", "qd8 f32 qb4w", "4x16c4", "neondot", "dot"
    ),
    "xnn_qd8_f32_qc8w_igemm_minmax_ukernel_1x8c2s4__neon_mlal": xnn(
        "igemm", "qd8 f32 qc8w", "1x8c2s4", "neon", "mlal"
    ),
    "xnn_qdu8_f32_qc8w_gemm_minmax_ukernel_1x64c4__avx512vnni_prfm": xnn(
        "gemm", "qdu8 f32 qc8w", "1x64c4", "avx512vnni"
    ),
    "xnn_f32_gemm_minmax_ukernel_7x4v__rvv": xnn("gemm", "f32", "7x4v", "rvv"),
    "xnn_f32_ppmm_minmax_ukernel_4x8_prfm__neonfma": xnn("ppmm", "f32", "4x8_prfm", "neonfma"),
    "xnn_f32_spmm_minmax_ukernel_32x1__neonfma_pipelined": xnn("spmm", "f32", "32x1", "neonfma"),
    "xnn_f32_dwconv_minmax_ukernel_9p8c__neonfma": xnn("dwconv", "f32", "9p8c", "neonfma"),
    "xnn_f32_dwconv_minmax_ukernel_5f5m5l8c4s4r__neonfma_acc2": xnn(
        "dwconv", "f32", "5f5m5l8c4s4r", "neonfma"
    ),
    "xnn_f32_dwconv_minmax_ukernel_up8x9__neonfma": xnn("dwconv", "f32", "up8x9", "neonfma"),
    "xnn_qs8_qc8w_dwconv_minmax_fp32_ukernel_25p16c__neonv8_mla8_ld128": xnn(
        "dwconv", "qs8 qc8w", "25p16c", "neonv8", "mla8"
    ),
    "xnn_f32_dwconv2d_chw_ukernel_3x3p1__aarch64_neonfma_3x4": xnn("dwconv2d_chw", "f32", "3x3p1", "neonfma"),
    "xnn_f32_conv_hwc2chw_ukernel_3x3s2p1c3x4__aarch64_neonfma_2x2": xnn(
        "conv_hwc2chw", "f32", "3x3s2p1c3x4", "neonfma"
    ),
    "xnn_f16_maxpool_minmax_ukernel_9p__neonfp16arith_u8": xnn("maxpool", "f16", "9p", "neonfp16arith"),
    "xnn_f32_argmaxpool_ukernel_9p8x__neon_c4": xnn("argmaxpool", "f32", "9p8x", "neon"),
    "xnn_qs8_gavgpool_minmax_rndnu_ukernel_7p7x__neon_c8": xnn("gavgpool", "qs8", "7p7x", "neon"),
    "xnn_f32_ibilinear_chw_ukernel__neonfma_p8": xnn("ibilinear_chw", "f32", None, "neonfma"),
    "xnn_x32_transposec_ukernel__4x4_aarch64_neon_tbl128": xnn("transposec", "x32", "4x4", "neon"),
    "xnn_x8_transposec_ukernel__16x16_reuse_dec_zip_neon": xnn("transposec", "x8", "16x16", "neon"),
    "xnn_x32_transposec_ukernel__1x2_scalar_float": xnn("transposec", "x32", "1x2", "scalar"),
    "xnn_xx_transposev_ukernel__1x1_scalar_memcpy": xnn("transposev", "xx", "1x1", "scalar"),
    "xnn_xx_copy_ukernel__scalar_memcpy": xnn("copy", "xx", None, "scalar"),
    "xnn_xx_pad_ukernel_p16__neon_u16": xnn("pad", "xx", "p16", "neon"),
    "xnn_x8_lut_ukernel__aarch64_neon_tbx128x4_u64": xnn("lut", "x8", None, "neon"),
    "xnn_f32_vadd_minmax_ukernel__neon_u8": xnn("vadd", "f32", None, "neon"),
    "xnn_qs8_vmul_minmax_rndnu_ukernel__neon_ld128_u16": xnn("vmul", "qs8", None, "neon"),
    "xnn_f32_vmulcaddc_minmax_ukernel_c4__neonfma_2x": xnn("vmulcaddc", "f32", "c4", "neonfma"),
    "xnn_f16_f32_vcvt_ukernel__neonfp16_u16": xnn("vcvt", "f16 f32", None, "neonfp16"),
    "xnn_f32_qs8_vcvt_ukernel__neonv8_u32": xnn("vcvt", "f32 qs8", None, "neonv8"),
    "xnn_f32_vsigmoid_ukernel__aarch64_neonfma_rr1_lut64_p2_div_u16": xnn("vsigmoid", "f32", None, "neonfma"),
    "xnn_f32_raddstoreexpminusmax_ukernel__neonfma_rr1_lut64_p2_u16_acc2": xnn(
        "raddstoreexpminusmax", "f32", None, "neonfma"
    ),
    "xnn_f16_f32acc_rdsum_ukernel_7p7x__neonfp16arith_c16": xnn(
        "rdsum", "f16 f32acc", "7p7x", "neonfp16arith"
    ),
    "xnn_qs8_rsum_ukernel__neondot_u64_acc2": xnn("rsum", "qs8", None, "neondot", "dot"),
    "xnn_f32_rminmax_ukernel__neon_u16_acc4": xnn("rminmax", "f32", None, "neon"),
    "xnn_x32_packw_gemm_goi_ukernel_x8__neon_ld4lane_u4_prfm": xnn("packw", "x32", "x8", "neon", role="pack"),
    "xnn_x16_packw_gemm_goi_ukernel_x16__neon_ld4lane_u12": xnn("packw", "x16", "x16", "neon", role="pack"),
    "xnn_qs8_qc4w_packw_gemm_goi_ukernel_x8c8__scalar": xnn(
        "packw", "qs8 qc4w", "x8c8", "scalar", role="pack"
    ),
    "xnn_x8_packq_f32qp8_ukernel__aarch64_neon_u2": xnn("packq", "x8 f32 qp8", None, "neon", role="pack"),
    "xnn_x32_pack_lh_ukernel__neonsme2": xnn("pack_lh", "x32", None, "sme2", role="pack"),
    "xnn_x16_pack_lh_ukernel__igemm_neonsme2": xnn("pack_lh", "x16", None, "sme2", role="pack"),
    "xnn_x8_pack_lh_ukernel__neonsme": xnn("pack_lh", "x8", None, "sme", role="pack"),
    "xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2_get_nr": xnn("gemm", "pf32", "32x32", "sme2", role="query"),
}


@pytest.mark.parametrize("symbol", XNNPACK_NAMES)
def test_names_by_xnnpacks_rules_are_parsed(symbol: str):
    assert parse_kernel(symbol) == XNNPACK_NAMES[symbol]


KLEIDIAI_NAMES = {
    "kai_run_dwconv_clamp_f32_f32_f32p1vlx1b_3x3_s1_4xc_sme2_mla": known(
        "kleidiai", "dwconv", "compute", "f32 f32 f32p1vlx1b", "3x3_s1_4xc", "sme2", "mla"
    ),
    "kai_run_imatmul_clamp_f32_f32p2vlx1_f32p2vlx1b_2vlx2vl_sme2_mopa": known(
        "kleidiai", "imatmul", "compute", "f32 f32p2vlx1 f32p2vlx1b", "2vlx2vl", "sme2", "mopa"
    ),
    "kai_matmul_clamp_f32_qsi8d32p4x8_qsi4c32p4x8_16x4_neon_i8mm": known(
        "kleidiai", "matmul", "compute", "f32 qsi8d32p4x8 qsi4c32p4x8", "16x4", "neoni8mm"
    ),
    "kai_run_matmul_clamp_f32_f32_f32p16x1b_6x16_neon_mla_cortexa55": known(
        "kleidiai", "matmul", "compute", "f32 f32 f32p16x1b", "6x16", "neon", "mla"
    ),
    "kai_run_rhs_pack_nxk_qai4c32ps1s0nrx4_qau4c32s0s1_f32_f32_f32_neon": known(
        "kleidiai", "rhs_pack", "pack", "qai4c32ps1s0nrx4 qau4c32s0s1 f32 f32 f32", None, "neon"
    ),
    "kai_rhs_get_dst_size_dwconv_pack_x32p1vlx1b_x32_x32_sme": known(
        "kleidiai", "dwconv_pack", "query", "x32p1vlx1b x32 x32", None, "sme"
    ),
}


@pytest.mark.parametrize("symbol", KLEIDIAI_NAMES)
def test_names_by_kleidiais_rules_are_parsed(symbol: str):
    assert parse_kernel(symbol) == KLEIDIAI_NAMES[symbol]


@pytest.mark.parametrize(
    "symbol",
    [
        "_kai_run_lhs_pack_f32p2vlx1_f32_sme",
        "kai_run_lhs_pack_f32p2vlx1_f32_sme.constprop.0",
        "kai_run_lhs_pack_f32p2vlx1_f32_sme@@VERS_1",
    ],
)
def test_what_linkers_and_compilers_add_does_not_matter(symbol: str):
    assert parse_kernel(symbol) == parse_kernel("kai_run_lhs_pack_f32p2vlx1_f32_sme")
    assert parse_kernel(symbol).known


@pytest.mark.parametrize(
    "symbol",
    [
        "xnn_f32_frobnicate_ukernel_1x8__neon",
        "xnn_f32_gemm_minmax_ukernel_1x8__quantum",
        "xnn_gemm_minmax_ukernel_1x8__neon",
        "kai_run_matmul_clamp_f32_f32_f32p2vlx1b_1x8vl_sme2_frobnicate",
        "kai_run_matmul_clamp_f32_f32_strange9_1x8vl_sme2_mla",
        "kai_run_frobnicate_f32_f32_sme2",
    ],
)
def test_a_kernel_of_a_new_kind_is_not_known(symbol: str):
    assert not parse_kernel(symbol).known
    assert parse_kernel(symbol).library in ("xnnpack", "kleidiai")


@pytest.mark.parametrize("symbol", [None, "", "memcpy", "_ZN10executorch7runtime6Method7executeEv", "main"])
def test_functions_that_are_no_kernels_belong_to_other(symbol: str | None):
    assert parse_kernel(symbol) == KernelName("other")


def test_other_functions_of_xnnpack_are_known_as_its_own_and_not_as_kernels():
    assert parse_kernel("xnn_run_operator") == KernelName("xnnpack")


def test_packing_of_weights_when_a_model_is_loaded_is_packing():
    kernel = parse_kernel("xnn_pack_kai_qs8_qc8w_weights_and_biases_sme")
    assert (kernel.role, kernel.data_types, kernel.isa) == ("pack", ("qs8", "qc8w"), "sme")


words = st.sampled_from(
    [
        *("xnn", "kai", "run", "kernel", "get", "lhs", "pack", "matmul", "clamp", "f32", "f32p2vlx1"),
        *("qai8dxp", "gemm", "minmax", "ukernel", "1x8", "neon", "sme2", "mopa", ""),
    ]
)


@given(st.one_of(st.text(), st.lists(words, max_size=30).map("_".join)))
def test_no_text_makes_it_fail(text: str):
    for symbol in (text, f"xnn_{text}", f"kai_{text}"):
        assert isinstance(parse_kernel(symbol), KernelName)


if __name__ == "__main__":
    library = Path(sys.argv[1])
    header = "symbol\tlibrary\tfamily\trole\tdata_types\ttile\tisa\tinstruction"
    lines = [header, *map(line_of, kernel_symbols(library))]
    machine = {183: "aarch64", 62: "x86_64"}[int.from_bytes(library.read_bytes()[18:20], "little")]
    (GOLDEN / f"{machine}.tsv").write_text("\n".join(lines) + "\n")
    if kernels_of_headers():
        (GOLDEN / "kleidiai.txt").write_text("\n".join(kernels_of_headers()) + "\n")
