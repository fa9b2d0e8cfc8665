"""From the name of a kernel to what it is: library, family, role, data types, tile, instruction set.

What belongs here: the grammar of the two families of kernel names inside XNNPACK, and nothing that needs more
than the name. XNNPACK's own microkernels are `xnn_<types>_<family>[_<activation>][_<requantisation>]
_ukernel[_<tile>]__<isa>[_<variant>...]`; KleidiAI's are `kai_<verb>_<operation>_<types>[_<tile>]_<isa>
[_<instruction>]`. A name that fits neither is kept and marked as unknown, because a silent guess would end up
as evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

XNNPACK = "xnnpack"
KLEIDIAI = "kleidiai"
OTHER_LIBRARY = "other"

COMPUTE = "compute"
PACK = "pack"
QUERY = "query"
OTHER_ROLE = "other"

# Kernel names have fewer than 150 characters; mangled C++ names can have any length and are never kernels.
_LONGEST_NAME = 400


@dataclass(frozen=True)
class KernelName:
    """What the name of a function says about it."""

    library: str
    """`xnnpack`, `kleidiai` or `other`: whose naming rules the name follows."""
    family: str | None = None
    """The operation: `gemm`, `dwconv`, `vadd`, `packw`, `matmul`, `lhs_pack`, ... None where unknown."""
    role: str = OTHER_ROLE
    """`compute` does an operator's work, `pack` lays out data for such a kernel, `query` only answers a
    question about one (sizes, offsets, steps), `other` is everything else."""
    data_types: tuple[str, ...] = ()
    """In the order of the name. KleidiAI's include the packing: `f32p2vlx1biasf32`."""
    tile: str | None = None
    """What one call covers, as written: `6x16`, `1x32c2`, `9p8c`, `2vlx2vl`."""
    isa: str | None = None
    """Normalised: `sme2`, `sme`, `sve`, `neon`, `neondot`, `neoni8mm`, `scalar`, ..."""
    instruction: str | None = None
    """The kind of instruction that the name states: `mopa`, `mla`, `dot`, `mlal`, ..."""
    known: bool = False
    """Whether all of the name was understood as a kernel's."""


@lru_cache(maxsize=16384)
def parse_kernel(symbol: str | None) -> KernelName:
    """The parts of a function's name. Any text is accepted; None is a function without a name."""
    if not symbol or len(symbol) > _LONGEST_NAME:
        return KernelName(OTHER_LIBRARY)
    name = _plain(symbol)
    if name.startswith("kai_"):
        return _kleidiai(name)
    if name.startswith("xnn_"):
        return _xnnpack(name)
    return KernelName(OTHER_LIBRARY)


def _plain(symbol: str) -> str:
    """Without what linkers and compilers add: macOS' underscore, symbol versions, `.constprop.0`."""
    name = re.split(r"[.@]", symbol, maxsplit=1)[0]
    return name[1:] if name.startswith(("_xnn_", "_kai_")) else name


# XNNPACK

_XNNPACK_NAME = re.compile(
    r"xnn_(?P<head>[a-z0-9_]+?)_ukernel(?:_(?P<tile>(?:(?!__)[a-z0-9_])+))?__(?P<tail>[a-z0-9_]+)", re.ASCII
)
_XNNPACK_TYPE = re.compile(r"(?:p?(?:bf|f|q[a-z]{1,2})|cs|[suix])\d+w?|xx|f\d+acc", re.ASCII)
_ACTIVATIONS = ("minmax", "relu", "linear")
_REQUANTISATIONS = ("fp32", "fp16", "rndnu", "rndnu16", "rndna", "gemmlowp", "magic")
# Words that say how the weights of a matrix product are laid out, not what is computed.
_WEIGHT_LAYOUTS = ("goi", "gio")

_PACKING_FAMILIES = frozenset({"packw", "packb", "packx", "packq", "pack_lh", "zerob", "im2col"})
_XNNPACK_FAMILIES = _PACKING_FAMILIES | {
    *("gemm", "gemminc", "igemm", "ppmm", "spmm", "dwconv", "dwconv2d_chw", "conv_hwc", "conv_hwc2chw"),
    *("avgpool", "pavgpool", "gavgpool", "gavgpool_cw", "maxpool", "argmaxpool", "unpool"),
    *("ibilinear", "ibilinear_chw", "rope", "lut", "lut32norm", "prelu", "clamp", "hswish", "relu"),
    *("transposec", "transposev", "copy", "fill", "pad", "zip_x2", "zip_x3", "zip_x4", "zip_xm"),
    *("depthtospace2d_chw2hwc", "rsum", "rsum2", "rmax", "rmin", "rminmax", "rmaxabs"),
    *("rdsum", "rdsum2", "rdmax", "rdmin", "rdminmax"),
    *("raddexpminusmax", "raddextexp", "raddstoreexpminusmax"),
    *("bfly4", "fftr", "window", "window_shift12", "window_shift15"),
    *("filterbank_accumulate", "filterbank_subtract"),
}
_ELEMENTWISE_FAMILY = re.compile(r"v[a-z]+[0-9]*", re.ASCII)

_XNNPACK_ISA = re.compile(
    r"(?:scalar|neon|sve|sme|armsimd32|fp16arith|sse|ssse|avx|fma3|f16c|xop|wasm|rvv|vsx|hvx)[a-z0-9]*",
    re.ASCII,
)
_TILE_AFTER_ISA_MARK = re.compile(r"\d+x\d+", re.ASCII)
_INSTRUCTIONS = frozenset(
    {"mopa", "mla", "mlal", "mull", "mla8", "mul8", "mul16", "mul32", "madd"}
    | {"dot", "sdot", "udot", "usdot", "mmla", "bfdot", "bfmlal", "bfmmla"}
)
_SCALABLE_ISA = re.compile(r"(?:neon)?(?P<isa>sme2?|sve2?)(?:p\d)?", re.ASCII)


def _normalised(isa: str) -> str:
    """Scalable instruction sets by their own name: `neonsme2` is `sme2`, and so is `sme2p1`."""
    match = _SCALABLE_ISA.fullmatch(isa)
    return match["isa"] if match else isa


def _xnnpack(name: str) -> KernelName:
    match = _XNNPACK_NAME.fullmatch(name)
    if match is None:
        return _xnnpack_weights(name)
    data_types, words = _leading_types(match["head"].split("_"))
    family, more_types = _xnnpack_family(words)
    tail, is_query = _without_query(match["tail"].split("_"))
    isa = next((word for word in tail if _XNNPACK_ISA.fullmatch(word)), None)
    tile = match["tile"]
    if tile is None and _TILE_AFTER_ISA_MARK.fullmatch(tail[0]):
        tile = tail[0]  # transposes name their tile after the double underscore
    return KernelName(
        library=XNNPACK,
        family=family,
        role=QUERY if is_query else PACK if family in _PACKING_FAMILIES else COMPUTE,
        data_types=(*data_types, *more_types),
        tile=tile,
        isa=_normalised(isa) if isa else None,
        instruction=_xnnpack_instruction(isa, tail),
        known=bool(data_types and isa) and _is_xnnpack_family(family),
    )


def _leading_types(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    count = next((at for at, word in enumerate(words) if not _XNNPACK_TYPE.fullmatch(word)), len(words))
    return tuple(words[:count]), words[count:]


def _xnnpack_family(words: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """The family, and the data types that follow it (`packq_f32qp8`)."""
    for endings in (_REQUANTISATIONS, _ACTIVATIONS):
        if len(words) > 1 and words[-1] in endings:
            words = words[:-1]
    if not words:
        return None, ()
    if words[0] in ("packw", "packb"):
        return words[0], ()  # the rest says for which product, and how the weights are laid out
    if words[0] == "packq":
        return words[0], tuple(re.findall(r"q?[a-z]+\d+", "_".join(words[1:])))
    return "_".join(word for word in words if word not in _WEIGHT_LAYOUTS), ()


def _is_xnnpack_family(family: str | None) -> bool:
    return family is not None and (
        family in _XNNPACK_FAMILIES or _ELEMENTWISE_FAMILY.fullmatch(family) is not None
    )


def _without_query(tail: list[str]) -> tuple[list[str], bool]:
    """A kernel for a vector length known only at run time has companions that return its tile."""
    return (tail[:-2], True) if len(tail) > 2 and tail[-2] == "get" else (tail, False)


def _xnnpack_instruction(isa: str | None, tail: list[str]) -> str | None:
    named = next((word for word in tail if word in _INSTRUCTIONS), None)
    return named or ("dot" if isa is not None and isa.startswith("neondot") else None)


_XNNPACK_WEIGHTS = re.compile(r"xnn_pack(?P<stride>ed_stride)?_(?:kai_)?(?P<rest>[a-z0-9_]+)", re.ASCII)


def _xnnpack_weights(name: str) -> KernelName:
    """Functions that lay out weights when a model is loaded. They have no microkernel names."""
    match = _XNNPACK_WEIGHTS.fullmatch(name)
    data_types, words = _leading_types(match["rest"].split("_")) if match else ((), [])
    if match is None or not data_types:
        return KernelName(XNNPACK)
    return KernelName(
        library=XNNPACK,
        family="weights_pack",
        role=QUERY if match["stride"] else PACK,
        data_types=data_types,
        isa="sme" if words[-1:] == ["sme"] else None,
        known=True,
    )


# KleidiAI

_KLEIDIAI_OPERATION = (
    r"(?P<family>i?matmul|dwconv(?:_pack)?|(?:lhs|rhs)_(?:(?:quant|imatmul|dwconv)_)?pack)"
    r"(?:_(?:clamp|kxn|nxk))?"
)
_KLEIDIAI_NAME = re.compile(
    r"kai_(?:(?P<verb>run|kernel|get_[a-z0-9_]+?|[a-z0-9_]+?)_)??"
    + _KLEIDIAI_OPERATION
    + r"(?P<rest>(?:_[a-z0-9]+)+)",
    re.ASCII,
)
# A type, how it is quantised (per channel, per dimension, in blocks), and how it is packed.
_KLEIDIAI_TYPE = re.compile(
    r"(?:bf|f|x|i|u|q[as]?[iu]?)\d+"
    r"(?:[cd](?:x|\d+))?"
    r"(?:s\d+s\d+)?"
    r"(?:p(?:\d+(?:vl)?x\d+(?:vl)?|nrx\d+|s\d+s\d+|sb|b|biasf\d+|scale[bf]+\d+)*)?",
    re.ASCII,
)
_KLEIDIAI_ISA = re.compile(r"neon|sve2?|sme2?(?:p\d)?", re.ASCII)
_KLEIDIAI_TILE = re.compile(r"\d+(?:vl)?x(?:\d+(?:vl)?|c)(?:x\d+)?|s\d+", re.ASCII)
# Extensions that may follow the instruction set, with the instruction that each brings.
_NEON_EXTENSIONS = {"dotprod": ("neondot", "dot"), "i8mm": ("neoni8mm", None)}
_KLEIDIAI_VECTOR_LENGTH = re.compile(r"kai_get_(?P<isa>sme|sve)_vector_length_(?P<type>[us]\d+)", re.ASCII)


def _kleidiai(name: str) -> KernelName:
    match = _KLEIDIAI_NAME.fullmatch(name)
    if match is None:
        return _kleidiai_helper(name)
    words = match["rest"].split("_")[1:]
    count = next((at for at, word in enumerate(words) if not _KLEIDIAI_TYPE.fullmatch(word)), len(words))
    data_types, words = tuple(words[:count]), words[count:]
    at = next((at for at, word in enumerate(words) if _KLEIDIAI_ISA.fullmatch(word)), len(words))
    isa, instruction, rest_is_known = _kleidiai_isa(words[at:])
    tile = [word for word in words[:at] if _KLEIDIAI_TILE.fullmatch(word)]
    strangers = [word for word in words[:at] if word not in tile and not re.fullmatch(r"opt\d+", word)]
    role = _kleidiai_role(match["verb"], match["family"])
    return KernelName(
        library=KLEIDIAI,
        family=match["family"],
        role=role,
        data_types=data_types,
        tile="_".join(tile) or None,
        isa=isa,
        instruction=instruction,
        # A kernel that computes always names its instruction set; one that packs may be plain C.
        known=bool(data_types)
        and not strangers
        and rest_is_known
        and (isa is not None or match["family"].endswith("pack")),
    )


def _kleidiai_role(verb: str | None, family: str) -> str:
    if verb is not None and re.search(r"(?:^|_)get_", verb):
        return QUERY
    if verb not in (None, "run", "kernel"):
        return OTHER_ROLE
    return PACK if family.endswith("pack") else COMPUTE


def _kleidiai_isa(words: list[str]) -> tuple[str | None, str | None, bool]:
    """Instruction set, instruction, and whether all words were understood."""
    if not words:
        return None, None, True
    isa, *rest = _normalised(words[0]), *words[1:]
    if rest[:1] and rest[0] in _NEON_EXTENSIONS:
        extended, instruction = _NEON_EXTENSIONS[rest[0]]
        return (extended if isa == "neon" else isa), instruction, _are_variants(rest[1:])
    if rest[:1] and rest[0] in _INSTRUCTIONS:
        return isa, rest[0], _are_variants(rest[1:])
    return isa, None, _are_variants(rest)


def _are_variants(words: list[str]) -> bool:
    """Whether the words only distinguish variants of one kernel: the core it is tuned for, or assembly."""
    return all(re.fullmatch(r"cortexa\d+|asm|opt\d+", word) for word in words)


def _kleidiai_helper(name: str) -> KernelName:
    if name == "kai_commit_za":
        return KernelName(KLEIDIAI, "commit_za", OTHER_ROLE, isa="sme", known=True)
    if match := _KLEIDIAI_VECTOR_LENGTH.fullmatch(name):
        return KernelName(KLEIDIAI, "vector_length", QUERY, (match["type"],), isa=match["isa"], known=True)
    return KernelName(KLEIDIAI)
