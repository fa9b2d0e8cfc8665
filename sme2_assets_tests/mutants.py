"""What the tests would catch: faults planted in the product, each against the tests that touch its line.

    python -m sme2_assets_tests.mutants --seed 1            60 mutants against the tests of `make test`
    python -m sme2_assets_tests.mutants --seed 1 -m ""      against all tests

Which tests touch a line is measured first, by a run of them under coverage. A mutant is named by its function
and its text, so that a seed draws the same ones before and after a change elsewhere.
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
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

from sme2_assets.store import CHECKOUT
from sme2_assets_tests.tiers import name_of, recorded

ROOMS = ("analysis", "etdump", "evidence", "warehouse", "profiling", "models", "report")
IN_MAKE_TEST = "not thorough and not alone"
# A mutant may never end.
MOST_S = 900
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
    line: int
    last_line: int
    function: str
    before: str
    after: str
    occurrence: int
    """Of the same text in the same function."""
    source: str
    """The whole file, with the fault."""

    def rank(self, seed: int) -> str:
        """Mutants are drawn by it; where in the file the function stands does not matter."""
        named = (str(seed), self.file, self.function, self.before, self.after, str(self.occurrence))
        return hashlib.sha256("\0".join(named).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before} => {self.after}"


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
                lines = (node.lineno, node.end_lineno or node.lineno)
                yield Mutant(file, *lines, *named, seen[named], _planted(source, node, after))


def _inside(function: ast.FunctionDef) -> Iterator[ast.expr | ast.stmt]:
    """What a function does, without annotations and without functions within it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.JoinedStr)):
            continue
        if isinstance(node, (ast.expr, ast.stmt)):
            yield node
        parts = dict(ast.iter_fields(node))
        parts.pop("annotation", None)
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


def _planted(source: str, node: ast.expr | ast.stmt, changed: str) -> str:
    """The source with this text in the place of the node."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    text = changed if isinstance(node, ast.stmt) else f"({changed})"
    return (before + text.encode() + after).decode()


def drawn(seed: int, count: int) -> list[Mutant]:
    paths = [path for room in ROOMS for path in sorted((CHECKOUT / "sme2_assets" / room).rglob("*.py"))]
    every = (mutant for path in paths for mutant in mutants_of(path))
    return sorted(every, key=lambda mutant: mutant.rank(seed))[:count]


class Touched:
    """Which tests ran which lines."""

    def __init__(self, measured: Path) -> None:
        self._data = CoverageData(str(measured))
        self._data.read()
        contexts = (_test_and_phase(context)[0] for context in self._data.measured_contexts())
        self._tests = {test for test in contexts if "::" in test}
        # The folder that was measured may be a clone.
        self._files = {file.partition("/sme2_assets/")[2]: file for file in self._data.measured_files()}

    def by(self, mutant: Mutant) -> list[str]:
        """The tests, quickest first. What ran in a fixture may be looked at by any test of that room."""
        file = self._files.get(mutant.file.removeprefix("sme2_assets/"))
        touching, rooms = set(), set()
        if file is not None:
            lines = set(range(mutant.line, mutant.last_line + 1))
            for line, contexts in self._data.contexts_by_lineno(file).items():
                for context in contexts if line in lines else ():
                    test, phase = _test_and_phase(context)
                    touching.add(test)
                    if phase == "setup":
                        rooms.add(test.rpartition("/")[0])
        touching.discard("")
        shared = {test for test in self._tests if test.rpartition("/")[0] in rooms}
        taken = recorded().tests
        # What touches the line itself is likelier to see it.
        return sorted(touching | shared, key=lambda test: (test not in touching, taken.get(test, 0)))


def _test_and_phase(context: str) -> tuple[str, str]:
    """Of `test|run`, or of `test (call)` in a process that a test has started."""
    test, _, phase = context.replace(" (", "|").rstrip(")").partition("|")
    return name_of(test), phase


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    caught: bool
    by: str
    seconds: float


def tried(mutant: Mutant, tests: list[str], copies: SimpleQueue[Path], marks: str) -> Outcome:
    if not tests:
        return Outcome(mutant, False, "no test runs this line", 0.0)
    copy = copies.get()
    started = time.monotonic()
    file = copy / mutant.file
    sound = file.read_bytes()
    try:
        file.write_text(mutant.source, encoding="utf-8")
        (copy / "tests.txt").write_text("\n".join(tests))
        # What is exported or measured comes from the mutant; what is built or fetched does not depend on it.
        artifacts = copy / "artifacts"
        shutil.rmtree(artifacts / "models", ignore_errors=True)
        command = ["-m", "pytest", "-x", "-q", "-m", marks, "-p", "no:cacheprovider", "@tests.txt"]
        environment = {**os.environ, "SME2_TEST_ARTIFACTS": str(artifacts), "PYTHONPATH": str(copy)}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_S,
        )
        ended = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        # 5: none of them is in this tier.
        caught = done.returncode not in (0, 5)
        assert done.returncode != 4, done.stdout + done.stderr
        by = ended[0].split(" - ")[0] if ended else f"exit code {done.returncode}, {len(tests)} tests"
    except subprocess.TimeoutExpired:
        caught, by = True, "it does not end"
    finally:
        file.write_bytes(sound)
        copies.put(copy)
    return Outcome(mutant, caught, by, time.monotonic() - started)


def measure(measured: Path, marks: str) -> None:
    settings = ["--cov=sme2_assets", "--cov-context=test", "--cov-report="]
    command = ["-m", "pytest", "-q", "-n", "auto", "--dist", "loadgroup", "-m", marks, *settings]
    environment = {**os.environ, "COVERAGE_FILE": str(measured)}
    subprocess.run([sys.executable, *command], cwd=CHECKOUT, env=environment, check=False)


def copied(folder: Path, artifacts: Path | None) -> Path:
    """The files in git, with what is built and fetched beside them."""
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
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
    options.add_argument("--coverage", type=Path, help="a run of them that was measured before")
    options.add_argument("--artifacts", type=Path, help="built and fetched things, as SME2_TEST_ARTIFACTS")
    given = options.parse_args()
    chosen = drawn(given.seed, given.count)
    print(f"seed {given.seed}: {len(chosen)} mutants of {', '.join(ROOMS)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sme2-mutants-") as name:
        measured = given.coverage or Path(name) / "coverage"
        if given.coverage is None:
            measure(measured, given.marks)
        touched = Touched(measured)
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            copies.put(copied(Path(name) / f"copy{job}", given.artifacts))
        caught = 0
        with ThreadPoolExecutor(given.jobs) as pool:
            waiting = [pool.submit(tried, each, touched.by(each), copies, given.marks) for each in chosen]
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
