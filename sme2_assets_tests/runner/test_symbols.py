"""Functions as files tell them: names and boundaries, of stripped libraries and hand-written assembly too."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.runner.build import find_compiler
from sme2_assets.runner.symbols import function_starts, image_of, read_image

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="compiles an ELF library")


# Loads a library and answers, for addresses in it, what the C library and the unwinder of this process know.
ASK_THE_LOADER = """
import ctypes, json, sys

class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("start", ctypes.c_void_p)]

path, anchor, addresses = sys.argv[1], sys.argv[2], json.load(sys.stdin)
library = ctypes.CDLL(path)
process, unwinder = ctypes.CDLL(None), ctypes.CDLL("libgcc_s.so.1")
process.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
enclosing = unwinder._Unwind_FindEnclosingFunction
enclosing.argtypes, enclosing.restype = [ctypes.c_void_p], ctypes.c_void_p
info = Info()
assert process.dladdr(ctypes.cast(getattr(library, anchor), ctypes.c_void_p), info)
base, answers = info.base, []
for address in addresses:
    assert process.dladdr(base + address, info) and info.base == base
    # It is made for return addresses, and looks at the byte before the one given.
    start = enclosing(base + address + 1)
    name = info.name and info.name.decode()
    answers.append([name, name and info.start - base, start and start - base])
json.dump(answers, sys.stdout)
"""


@on_linux
def test_the_files_tell_what_the_loader_and_the_unwinder_know(runner_binary, compiled):
    """Anywhere in the code: the sampler sees every instruction, not only starts of functions."""
    draw = random.Random(11)
    xnnpack = runner_binary.library_dir / "libexecutorch_backend_xnnpack.so"
    for path, anchor in ((xnnpack, "xnn_initialize"), (compiled[0], "exported_one")):
        image = read_image(path)
        first, end = text_of(path)
        addresses = sorted({draw.randrange(first, end) // 4 * 4 for _ in range(4000)})
        done = subprocess.run(
            [sys.executable, "-c", ASK_THE_LOADER, str(path), anchor],
            input=json.dumps(addresses),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        named = unnamed = 0
        for address, (name, named_start, start) in zip(addresses, json.loads(done.stdout), strict=True):
            found = image.function_at(address)
            if name is not None:
                assert found == (named_start, name)
                named += 1
            elif start is not None:
                assert found == (start, None)
                unnamed += 1
            else:
                assert found[1] is None
                assert found[0] <= address
        assert named > 0
        assert unnamed > 0


def text_of(path: Path) -> tuple[int, int]:
    """Where the code of an ELF file starts and ends, from the first byte that is mapped."""
    listed = subprocess.run(["readelf", "-SW", str(path)], capture_output=True, text=True, check=True).stdout
    words = next(line for line in listed.splitlines() if " .text " in line).split("]", 1)[1].split()
    return int(words[2], 16), int(words[2], 16) + int(words[4], 16)


# Functions that are exported, hidden, without unwind tables, and one inside another.
LIBRARY = """
__attribute__((noinline)) static int hidden_one(int x) { return x * 7 + 1; }
__attribute__((noinline)) static int hidden_two(int x) { return x / 3 - hidden_one(x + 1); }
__attribute__((noinline)) int exported_one(int x) { return hidden_one(x) + hidden_two(x); }
__attribute__((noinline)) int exported_two(int x) { return hidden_two(x) * x; }
int exported_alias(int x) __attribute__((alias("exported_two")));
"""
ASSEMBLY = """
__asm__(".text\\n.balign 64\\nbare_one:\\n  cbnz x0, 1f\\n  add x0, x0, 1\\n  ret\\n"
        "1: sub x0, x0, 1\\n  ret\\n"
        ".balign 32\\nbare_two:\\n  add x0, x0, 2\\n2: sub x0, x0, 1\\n  cbnz x0, 2b\\n  ret\\n"
        ".globl bare_exported\\n.type bare_exported, %function\\nbare_exported:\\n  add x0, x0, 3\\n  ret\\n"
        ".size bare_exported, .-bare_exported\\n");
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, int]]]:
    """A stripped library, and where each of its functions starts and ends, from before it was stripped."""
    folder = tmp_path_factory.mktemp("library")
    source, library = folder / "library.cpp", folder / "library.so"
    is_arm = platform.machine() in ("aarch64", "arm64")
    source.write_text(f'extern "C" {{ {LIBRARY} }}\n{ASSEMBLY if is_arm else ""}')
    flags = ["-shared", "-fPIC", "-O1", "-fno-inline", "-Wl,--build-id=sha1", "-fasynchronous-unwind-tables"]
    subprocess.run([*find_compiler(), *flags, str(source), "-o", str(library)], check=True)
    listed = subprocess.run(["nm", "-S", "-n", str(library)], capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, int]] = {}
    lines = [line.split() for line in listed.stdout.splitlines()]
    for at, words in enumerate(lines):
        name = words[-1]
        if any(part in name for part in ("hidden_", "exported_", "bare_")):
            start = int(words[0], 16)
            later = [
                int(other[0], 16) for other in lines[at + 1 :] if len(other) > 2 and other[0] != words[0]
            ]
            found[name] = (start, start + int(words[1], 16) if len(words) == 4 else later[0])
    subprocess.run(["strip", str(library)], check=True)
    return library, found


@on_linux
def test_every_function_of_a_stripped_library_has_its_start_and_exported_ones_their_name(compiled):
    library, functions = compiled
    assert len(functions) >= 5
    image = read_image(library)
    for name, (start, end) in functions.items():
        exported = "exported" in name
        for address in range(start, end, 4 if platform.machine() == "aarch64" else 1):
            if not exported and image.word_at(address) == 0xD503201F:
                continue  # padding between functions belongs to nobody
            told_start, told_name = image.function_at(address)
            assert told_start == start, name
            # Two names for one function: the table's first one counts, as for the loader.
            assert told_name in ({name, "exported_two", "exported_alias"} if exported else {None})


@on_linux
def test_the_build_id_is_the_linker_s(compiled):
    library, _ = compiled
    notes = subprocess.run(["readelf", "-n", str(library)], capture_output=True, text=True, check=True).stdout
    assert f"Build ID: {read_image(library).build_id}" in notes


def test_an_address_outside_all_code_stands_for_itself(compiled):
    image = read_image(compiled[0])
    assert image.function_at(1 << 40) == (1 << 40, None)
    assert image.word_at(1 << 40) is None


@on_linux
def test_a_file_is_read_once_and_again_after_it_changed(compiled, tmp_path):
    path = tmp_path / "library.so"
    shutil.copy(compiled[0], path)
    first = read_image(path)
    assert read_image(path) is first
    os.utime(path, ns=(1, 1))
    assert read_image(path) is not first


@on_linux
def test_a_damaged_file_is_a_clear_error_or_tells_what_it_still_can(compiled):
    library, functions = compiled
    whole = library.read_bytes()
    addresses = [start for start, _ in functions.values()]
    draw = random.Random(5)
    damaged = [whole[: draw.randrange(len(whole))] for _ in range(100)]
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            # The first thousand bytes are the headers, on which everything else hangs.
            changed[draw.randrange(min(1000, len(whole)))] = draw.randrange(256)
        damaged.append(bytes(changed))
    refused = 0
    for content in damaged:
        try:
            image = image_of(content)
            for address in addresses:
                start, name = image.function_at(address)
                assert isinstance(start, int)
                assert name is None or isinstance(name, str)
                image.word_at(address)
        except ValueError:
            refused += 1
    assert 0 < refused < len(damaged)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"MZ" + bytes(100), b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_no_program_is_refused(content):
    with pytest.raises(ValueError, match=r"damaged|neither"):
        image_of(content)


RET, NOP, ADD = 0xD65F03C0, 0xD503201F, 0x91000400


def b(distance: int) -> int:
    return 0x14000000 | distance % 2**26


def cbnz(distance: int) -> int:
    return 0xB5000000 | (distance % 2**19) << 5


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ([], []),
        ([NOP, 0], []),
        ([ADD, RET], [0]),
        ([ADD, RET, ADD, RET], [0, 2]),
        ([NOP, ADD, RET, NOP, 0, 0, ADD, RET, NOP], [1, 6]),
        # A second way out of the same function: a branch leads across the first one.
        ([cbnz(3), ADD, RET, ADD, RET, ADD, RET], [0, 5]),
        # A loop's way back from behind a return.
        ([ADD, cbnz(3), ADD, RET, ADD, b(-4), ADD, RET], [0, 6]),
        # A jump out of the gap ends a function too.
        ([ADD, b(1000), ADD, b(-1000), ADD], [0, 2, 4]),
        # A target is inside, so no function begins there.
        ([b(2), RET, ADD, RET, ADD, RET], [0, 4]),
    ],
)
def test_functions_begin_where_no_branch_leads_across(words, starts):
    assert function_starts(np.array(words, dtype=np.uint32)).tolist() == starts


def macho(symbols: dict[str, int], starts: Sequence[int], base: int = 0x100000000) -> bytes:
    """A Mach-O file with one text segment of 4096 bytes at `base`; symbols and starts count from there."""
    code = struct.pack("<1024I", *range(1024))
    names = b"\0" + b"".join(f"_{name}\0".encode() for name in symbols)
    nlist, at = b"", 1
    for name, value in symbols.items():
        nlist += struct.pack("<IBBHQ", at, 0x0F, 1, 0, base + value)
        at += len(name) + 2
    deltas = b""
    for before, start in zip([0, *starts], starts, strict=False):
        step = start - before
        while step >= 0x80:
            deltas += bytes([step & 0x7F | 0x80])
            step >>= 7
        deltas += bytes([step])
    deltas += b"\0"
    size = 32 + 72 + 24 + 24 + 16
    after = size + len(code)
    segment = struct.pack("<II16sQQQQIIII", 0x19, 72, b"__TEXT", base, 4096, size, 4096, 5, 5, 0, 0)
    symtab = struct.pack(
        "<IIIIII", 0x2, 24, after, len(symbols), after + len(nlist) + len(deltas), len(names)
    )
    uuid = struct.pack("<II16s", 0x1B, 24, bytes(range(16)))
    function_list = struct.pack("<IIII", 0x26, 16, after + len(nlist), len(deltas))
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x0100000C, 0, 6, 4, size - 32, 0, 0)
    return header + segment + symtab + uuid + function_list + code + nlist + deltas + names


def test_a_macho_file_tells_names_and_starts():
    image = image_of(macho({"exported": 64, "later": 1024}, [64, 128, 512, 1024]))
    assert image.build_id == bytes(range(16)).hex()
    assert image.function_at(64) == (64, "exported")
    assert image.function_at(124) == (64, "exported")
    # Another function begins after the last symbol: its name is not known.
    assert image.function_at(132) == (128, None)
    assert image.function_at(1000) == (512, None)
    assert image.function_at(2000) == (1024, "later")
    assert image.function_at(32) == (32, None)
    assert image.word_at(40) == 10
