"""What the tests would catch: faults planted in the product, each against the tests that touch its line.

    python -m sme2_assets_tests.mutants --seed 1            60 mutants against the tests of `make test`
    python -m sme2_assets_tests.mutants --seed 1 -m ""      against all tests

First the tests run on a clone in which mutants are marked and not planted: so we see which tests reach which,
also through processes that they start. A mutant is named by its function and its text, so a seed draws the
same ones before and after a change elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from sme2_assets.store import CHECKOUT
from sme2_assets_tests.tiers import name_of, recorded

ROOMS = ("analysis", "etdump", "evidence", "warehouse", "profiling", "models", "report")
IN_MAKE_TEST = "not thorough and not alone"
# A mutant may never end: so long, and five times what its tests usually take.
LEAST_PATIENCE_S = 600
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.And: "or",
    ast.Or: "and",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}


@dataclass(frozen=True)
class Mutant:
    file: str
    """Within the checkout."""
    node: ast.expr | ast.stmt
    function: str
    before: str
    after: str
    occurrence: int
    """Of the same text in the same function."""

    def rank(self, seed: int) -> str:
        """Mutants are drawn by it; where in the file the function stands does not matter."""
        named = (str(seed), self.file, self.function, self.before, self.after, str(self.occurrence))
        return hashlib.sha256("\0".join(named).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.file}:{self.node.lineno} {self.function}: {self.before} => {self.after}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    source = path.read_text(encoding="utf-8")
    file = str(path.relative_to(CHECKOUT))
    seen: Counter[tuple[str, str, str]] = Counter()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in _inside(function):
            for after in _changes(node):
                named = (function.name, ast.unparse(node), after)
                seen[named] += 1
                yield Mutant(file, node, *named, seen[named])


def _inside(function: ast.FunctionDef) -> Iterator[ast.expr | ast.stmt]:
    """What a function does, without annotations, patterns and functions within it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.JoinedStr)):
            continue
        if isinstance(node, (ast.expr, ast.stmt)):
            yield node
        parts = dict(ast.iter_fields(node))
        parts.pop("annotation", None)
        parts.pop("pattern", None)
        for part in parts.values():
            waiting += [
                each for each in (part if isinstance(part, list) else [part]) if isinstance(each, ast.AST)
            ]


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in SWAPS:
            yield f"{_source(left)} {SWAPS[type(operator)]} {_source(right)}"
        case ast.BoolOp(operator, values):
            yield f" {SWAPS[type(operator)]} ".join(_source(value) for value in values)
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            yield f"{_source(left)} {SWAPS[type(operator)]} {_source(right)}"
        case ast.UnaryOp(ast.Not(), operand):
            yield _source(operand)
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield str(value + 1)
        case ast.IfExp(test, body, orelse):
            yield f"{_source(orelse)} if {ast.unparse(test)} else {_source(body)}"
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise():
            yield "pass"


def _source(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def planted(source: str, mutant: Mutant) -> str:
    """The source with the fault."""
    start, end = _place(source, mutant.node)
    text = mutant.after if isinstance(mutant.node, ast.stmt) else f"({mutant.after})"
    encoded = source.encode()
    return (encoded[:start] + text.encode() + encoded[end:]).decode()


def marked(source: str, numbered: Iterable[tuple[int, Mutant]]) -> str:
    """The source without a fault, but each place of one says when it is reached."""
    inserted: list[tuple[int, str]] = []
    for number, mutant in numbered:
        start, end = _place(source, mutant.node)
        reached = f"__import__({REACHED!r}).reached({number})"
        if isinstance(mutant.node, ast.stmt):
            inserted.append((start, f"{reached}; "))
        else:
            inserted += [(start, f"({reached}, "), (end, ")[1]")]
    encoded = source.encode()
    for at, text in sorted(inserted, reverse=True):
        encoded = encoded[:at] + text.encode() + encoded[at:]
    return encoded.decode()


def _place(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where in the encoded source it begins and ends."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset


def drawn(seed: int, count: int) -> list[Mutant]:
    paths = [path for room in ROOMS for path in sorted((CHECKOUT / "sme2_assets" / room).rglob("*.py"))]
    every = (mutant for path in paths for mutant in mutants_of(path))
    return sorted(every, key=lambda mutant: mutant.rank(seed))[:count]


REACHED = "sme2_reached"
# A module of the marked copy. A test is named in the environment, which the processes that it starts inherit.
REACHED_SOURCE = """
import os

_known = set()


def reached(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _known:
        _known.add((number, test))
        with open({folder!r} + f"/{{number}}", "a") as file:
            file.write(test + "\\n")
"""


def tests_of(chosen: list[Mutant], copy: Path, marks: str) -> list[list[str]]:
    """The tests of each mutant, quickest first. What a fixture reaches, any test of that room may look at."""
    folder = copy / "reached"
    folder.mkdir()
    (copy / f"{REACHED}.py").write_text(REACHED_SOURCE.format(folder=str(folder)))
    in_file = defaultdict(list)
    for number, mutant in enumerate(chosen):
        in_file[mutant.file].append((number, mutant))
    for file, numbered in in_file.items():
        source = (CHECKOUT / file).read_text(encoding="utf-8")
        (copy / file).write_text(marked(source, numbered), encoding="utf-8")
    together = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup", "--no-loadscope-reorder"]
    ran = pytest_in(copy, *together, "-m", marks)
    for file in in_file:
        shutil.copy(CHECKOUT / file, copy / file)
    print(ran.stdout.rstrip().rpartition("\n")[2], flush=True)
    # What fails without a fault proves nothing.
    failing = set(failures(ran))
    print(*(f"fails without a fault: {test}" for test in sorted(failing)), sep="\n", flush=True)
    reached = [(folder / str(number)) for number in range(len(chosen))]
    lines = [file.read_text().splitlines() if file.exists() else [] for file in reached]
    every = {_test_and_phase(line)[0] for found in lines for line in found} - {""} - failing
    taken = recorded().tests
    tests = []
    for found in lines:
        phases = {_test_and_phase(line) for line in found}
        reaching = {test for test, _ in phases}
        rooms = {test.rpartition("/")[0] for test, phase in phases if phase == "setup"}
        shared = {test for test in every if test.rpartition("/")[0] in rooms}
        # What reaches the place itself is likelier to see it.
        asked = every & (reaching | shared)
        tests.append(sorted(asked, key=lambda test: (test not in reaching, taken.get(test, 0))))
    return tests


def _test_and_phase(line: str) -> tuple[str, str]:
    """Of `test (call)`."""
    test, _, phase = line.rstrip(")").rpartition(" (")
    return name_of(test), phase


def pytest_in(copy: Path, *words: str, most_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Tests of a copy, with what is built and fetched there; what is exported or measured is its own."""
    artifacts = copy / "artifacts"
    shutil.rmtree(artifacts / "models", ignore_errors=True)
    environment = {**os.environ, "SME2_TEST_ARTIFACTS": str(artifacts), "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=most_s)


def failures(ran: subprocess.CompletedProcess[str]) -> list[str]:
    lines = (line.partition(" ") for line in ran.stdout.splitlines())
    return [name_of(rest.partition(" - ")[0]) for word, _, rest in lines if word in ("FAILED", "ERROR")]


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    caught: bool
    by: str
    seconds: float


def tried(mutant: Mutant, tests: list[str], copies: SimpleQueue[Path]) -> Outcome:
    if not tests:
        return Outcome(mutant, False, "no test reaches it", 0.0)
    copy = copies.get()
    started = time.monotonic()
    source = (CHECKOUT / mutant.file).read_text(encoding="utf-8")
    try:
        (copy / mutant.file).write_text(planted(source, mutant), encoding="utf-8")
        (copy / "tests.txt").write_text("\n".join(tests))
        taken = recorded().tests
        usual_s = sum(taken.get(test, 0.1) for test in tests)
        ran = pytest_in(copy, "-x", "@tests.txt", most_s=LEAST_PATIENCE_S + 5 * usual_s)
        if ran.returncode not in (0, 1, 2):
            raise SystemExit(ran.stdout + ran.stderr)
        caught = ran.returncode != 0
        by = next(iter(failures(ran)), f"exit code {ran.returncode}, {len(tests)} tests")
    except subprocess.TimeoutExpired:
        caught, by = True, "it does not end"
    finally:
        shutil.copy(CHECKOUT / mutant.file, copy / mutant.file)
        copies.put(copy)
    return Outcome(mutant, caught, by, time.monotonic() - started)


def copied(folder: Path, artifacts: Path | None) -> Path:
    """A clone, with what is built and fetched beside it."""
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(folder)], check=True)
    (folder / "artifacts").mkdir()
    for part in ("runners", "tools"):
        if artifacts is not None and (artifacts / part).exists():
            shutil.copytree(artifacts / part, folder / "artifacts" / part, symlinks=True)
    return folder


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m sme2_assets_tests.mutants")
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=60)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("-m", dest="marks", default=IN_MAKE_TEST, help="the tests that are asked")
    options.add_argument("--artifacts", type=Path, help="built and fetched things, as SME2_TEST_ARTIFACTS")
    given = options.parse_args()
    chosen = drawn(given.seed, given.count)
    print(f"seed {given.seed}: {len(chosen)} mutants of {', '.join(ROOMS)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sme2-mutants-") as name:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            copies.put(copied(Path(name) / f"copy{job}", given.artifacts))
        first = copies.get()
        tests = tests_of(chosen, first, given.marks)
        copies.put(first)
        caught = 0
        with ThreadPoolExecutor(given.jobs) as pool:
            waiting = [pool.submit(tried, *each, copies) for each in zip(chosen, tests, strict=True)]
            for number, each in enumerate(waiting, 1):
                outcome = each.result()
                caught += outcome.caught
                verdict = "caught" if outcome.caught else "SURVIVED"
                print(
                    f"{number:3} {verdict:8} {outcome.seconds:6.0f} s  {outcome.mutant}  [{outcome.by}]",
                    flush=True,
                )
    print(f"{caught} of {len(chosen)} caught ({caught / len(chosen):.0%})")


if __name__ == "__main__":
    main()
