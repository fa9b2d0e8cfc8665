"""Programs that were changed to do harm, and what the runner makes of each.

`python -m sme2_assets_tests.runner.mutants RUNNER PROGRAMS COUNT [SEED]` runs many and counts how they end;
RUNNER is best the one with the sanitizers that test_native.py builds, PROGRAMS a folder of programs.py.
"""

from __future__ import annotations

import collections
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

NAMES = ("two_inputs", "channels_last", "portable", "int8", "logarithm_fp16")
DOCUMENTED_CODES = set(range(10)) - {1, 2}
# Looking for leaks takes seconds at the end of every process, and a broken program leaks by nature.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:symbolize=1"}
# Words that sizes, offsets and counts break on.
_ODD_WORDS = (0, 1, 2, 0x7F, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x10000, 0x40000000)


def mutant(whole: bytes, draw: random.Random) -> bytes:
    """One change, or a few of one kind: bits, bytes, words, an order of dimensions, the length."""
    changed = bytearray(whole)
    kind = draw.choice(("bits", "bytes", "words", "words", "order", "order", "cut", "grown", "moved"))
    if kind == "cut":
        return whole[: draw.randrange(len(whole))]
    if kind == "grown":
        return whole + draw.randbytes(draw.randrange(1, 4096))
    if kind == "moved":
        start, length = draw.randrange(len(whole)), draw.randrange(1, 64)
        target = draw.randrange(len(whole))
        changed[target : target + length] = whole[start : start + length]
        return bytes(changed[: len(whole)])
    orders = [found.start() + 4 for found in re.finditer(rb"\x04\0\0\0[\0-\3]{4}|\x02\0\0\0[\0\1]{2}", whole)]
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(changed))
        if kind == "order" and orders:
            changed[draw.choice(orders) + draw.randrange(4)] = draw.choice((0, 1, 3, 4, 127, 128, 255))
        elif kind == "bits":
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == "bytes":
            changed[at] = draw.randrange(256)
        else:
            at -= at % 4
            word = draw.choice((*_ODD_WORDS, int.from_bytes(whole[at : at + 4], "little") + 1, len(whole)))
            changed[at : at + 4] = (word & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(changed[: len(whole)])


def ending(returncode: int, stderr: str) -> str:
    """How a run ended, in one of few words; `ours` is the only one that must not be."""
    if "runtime error:" in stderr:
        return "ours"
    if "AddressSanitizer" in stderr:
        # Where it happened: the first frame outside the sanitizer and the C library.
        frames = re.findall(r"^\s+#\d+ 0x\w+ (.*)$", stderr, re.MULTILINE)
        place = next(
            (frame for frame in frames if not re.search(r"lib(asan|c|stdc\+\+)\.so|sanitizer", frame)), ""
        )
        if "/native/src/" in place:
            return "ours"
        if re.search(r"out-of-memory|allocation-size-too-big", stderr):
            return "more memory than there is"
        return "crash in ExecuTorch"
    if returncode == 0:
        return "runs"
    if returncode in DOCUMENTED_CODES:
        told = re.findall(r"^sme2_runner: error: .+; .+$", stderr, re.MULTILINE)
        return "refused with a sentence" if len(told) == 1 else "ours"
    return (
        "given up in ExecuTorch" if returncode == -6 else "crash in ExecuTorch" if returncode < 0 else "ours"
    )


def run_mutant(
    runner: Path, pte: Path, inputs: Sequence[Path], folder: Path, timeout_s: float
) -> tuple[str, str]:
    flags = [word for path in inputs for word in ("--input", str(path))]
    command = [
        *(str(runner), "--model", str(pte), *flags, "--pass", "etdump", "--warmup", "1", "--iterations", "1"),
        *("--threads", "1", "--result", str(folder / "result.json"), "--outputs", str(folder / "outputs")),
        *("--etdump", str(folder / "trace.etdump")),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, env={**os.environ, **SANITIZERS}, check=False
        )
    except subprocess.TimeoutExpired:
        return "endless, and killed", ""
    stderr = done.stderr.decode("utf-8", "replace")
    return ending(done.returncode, stderr), stderr


def try_mutants(
    runner: Path, programs: Path, count: int, seed: int, timeout_s: float = 60
) -> tuple[collections.Counter[str], list[str]]:
    """How `count` mutants ended, and what was said of those that are ours."""
    counts: collections.Counter[str] = collections.Counter()
    ours = []
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index in range(count):
            model = NAMES[index % len(NAMES)]
            inputs = sorted(programs.glob(f"{model}.input_*.npy"))
            assert all(np.load(path).size for path in inputs)
            pte = folder / "mutant.pte"
            pte.write_bytes(mutant((programs / f"{model}.pte").read_bytes(), draw))
            end, said = run_mutant(runner, pte, inputs, folder, timeout_s)
            counts[end] += 1
            if end == "ours":
                ours.append(f"mutant {index} of {model}, seed {seed}:\n{said[-4000:]}")
    return counts, ours


if __name__ == "__main__":
    found, told = try_mutants(
        Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int((sys.argv[4:] or [1])[0])
    )
    print("\n".join(told))
    for word, number in found.most_common():
        print(f"{number:6d}  {word}")
    sys.exit(bool(told))
