"""The counter of instructions, compiled with the sanitizers, against logs of which everything is known."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import BuildError, EvidenceError
from sme2_assets.evidence.work import WorkFile
from sme2_assets.work.counting import build_counter
from sme2_assets.work.counts import work_of_counter

START, STOP, BEGIN, END = (0xD28BC01F + 32 * number for number in range(4))
RETURN = 0xD65F03C0
CLOCK, LIBRARY = 0x1000, range(0x20000, 0x30000)
MODULES = (
    f"clock {CLOCK:x}\nmodule 400000 500000 - /tmp/my xnnpack/runner\n"
    f"module {LIBRARY.start:x} {LIBRARY.stop:x} ab01 /tmp/libexecutorch_backend_xnnpack.so\n"
    "module 1000 2000 - libc.so.6\n"
)
MARKS = {
    0x400000: [START, RETURN],
    0x400010: [STOP, RETURN],
    0x400020: [BEGIN, RETURN],
    0x400030: [END, RETURN],
}
AT_START, AT_STOP, AT_BEGIN, AT_END = MARKS


@dataclass
class Log:
    """As QEMU would write it."""

    lines: list[str] = field(default_factory=list)
    known: set[tuple[int, str]] = field(default_factory=set)

    def translate(self, address: int, words: Sequence[int]) -> None:
        lines = [f"0x{address + 4 * i:012x}:  {word:08x}  nop      " for i, word in enumerate(words)]
        self.lines += ["----------------", "IN: ", *lines, ""]

    def execute(
        self, address: int, words: Sequence[int], thread: int = 0, state: str = "00000001/00000200"
    ) -> None:
        if (address, state) not in self.known:
            self.known.add((address, state))
            self.translate(address, words)
        self.lines.append(f"Trace {thread}: 0x7fef75200100 [80083009331/{address:016x}/{state}] ")

    def take_back(self, address: int) -> None:
        self.lines.append(f"Stopped execution of TB chain before 0x7fef75200100 [{address:016x}] ")

    def mark(self, address: int, thread: int = 0) -> None:
        self.execute(address, MARKS[address], thread)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@pytest.fixture(scope="session")
def counter(artifacts_dir: Path) -> Path:
    checks = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    try:
        return build_counter(artifacts_dir, log=print, options=checks)
    except BuildError as error:
        pytest.skip(f"this compiler has no sanitizers: {error}")


@dataclass(frozen=True)
class Counted:
    returncode: int
    said: str
    path: Path

    def read(self) -> WorkFile:
        return work_of_counter(self.path, self.path.with_name("modules.txt"))

    def by_stretch(self) -> list[Counter[tuple[int, int]]]:
        """Of each stretch: how often which thread executed which word."""
        work = self.read()
        found: list[Counter[tuple[int, int]]] = [Counter() for _ in work.borders.kind]
        for stretch, block, thread, times in zip(*(column for _, column in work.executions), strict=True):
            for word in work.blocks.words[block]:
                found[stretch][thread, word] += times
        return found

    def borders(self) -> list[tuple[str, int]]:
        borders = self.read().borders
        return list(zip(borders.kind, borders.address, strict=True))


def counted(counter: Path, folder: Path, text: str) -> Counted:
    (folder / "modules.txt").write_text(MODULES)
    command = [str(counter), str(folder / "modules.txt"), str(folder / "counts.txt")]
    done = subprocess.run(command, input=text, text=True, capture_output=True)
    return Counted(done.returncode, done.stderr, folder / "counts.txt")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("execute"), st.integers(0, 11), st.integers(0, 2), st.sampled_from("ab")),
        st.tuples(st.sampled_from(["begin", "end"])),
        st.tuples(st.just("take back"), st.integers(0, 11)),
    ),
    max_size=60,
)


@given(steps)
def test_each_execution_is_counted_once_where_it_belongs(
    counter: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]
) -> None:
    log, expected, borders = Log(), [Counter()], []
    blocks = {n: [0xA0000000 + n * 16 + i for i in range(1 + n % 4)] for n in range(12)}

    def border(kind: str) -> None:
        borders.append((kind, 0))
        expected.append(Counter())

    def count(words: list[int], thread: int) -> None:
        expected[-1].update((thread, word) for word in words)

    log.execute(0x500000, [1, 2])
    log.mark(AT_START)
    for step in steps:
        match step:
            case ["execute", int(n), int(thread), str(state)]:
                log.execute(0x600000 + 0x100 * n, blocks[n], thread, f"0000000{ord(state) % 10}/00000200")
                count(blocks[n], thread)
            case ["begin"]:
                log.mark(AT_BEGIN)
                count(MARKS[AT_BEGIN], 0)
                border("begin")
            case ["end"]:
                log.mark(AT_END)
                border("end")
                count(MARKS[AT_END], 0)
            case ["take back", int(n)]:
                log.execute(0x600000 + 0x100 * n, blocks[n])
                log.take_back(0x600000 + 0x100 * n)
    log.mark(AT_STOP)
    borders.append(("stop", 0))
    log.execute(0x500000, [1, 2])
    found = counted(counter, tmp_path_factory.mktemp("log"), log.text)
    assert (found.returncode, found.said) == (0, "")
    assert found.borders() == borders
    assert found.by_stretch() == expected


def test_the_delegate_s_first_block_after_it_read_the_clock_is_a_border(
    counter: Path, tmp_path: Path
) -> None:
    log = Log()
    operator, after, elsewhere = [0xB0], [0xB1], [0xB2]
    log.mark(AT_START)
    for _ in range(2):
        log.execute(LIBRARY.start, operator)
        log.execute(CLOCK, [0xC0])
        # Another thread is in the library, and the clock itself is not back yet.
        log.execute(LIBRARY.start, operator, thread=1)
        log.execute(CLOCK + 0x10, [0xC1])
        log.execute(LIBRARY.start + 0x40, after)
    log.execute(CLOCK, [0xC0], thread=1)
    log.execute(LIBRARY.start, operator, thread=1)
    # Read from outside of the library: its next block does not know better.
    log.execute(0x600000, elsewhere)
    log.mark(AT_STOP)
    found = counted(counter, tmp_path, log.text)
    assert found.borders() == [("clock", LIBRARY.start + 0x40)] * 2 + [("stop", 0)]
    inside = Counter({(0, 0xB0): 1, (0, 0xC0): 1, (1, 0xB0): 1, (0, 0xC1): 1})
    assert found.by_stretch() == [
        inside,
        inside + Counter({(0, 0xB1): 1}),
        Counter({(0, 0xB1): 1, (1, 0xC0): 1, (1, 0xB0): 1, (0, 0xB2): 1}),
    ]


def test_a_block_that_is_translated_again_is_another_only_if_its_instructions_are(
    counter: Path, tmp_path: Path
) -> None:
    log = Log()
    log.mark(AT_START)
    log.execute(0x600000, [1, 2, 3])
    log.translate(0x600000, [1, 2, 3])
    log.execute(0x600000, [1, 2, 3])
    # Shorter for another state of the CPU; the first one is still there.
    log.execute(0x600000, [1, 2], state="00000002/00000200")
    log.execute(0x600000, [1, 2, 3])
    # Another library was loaded there.
    log.translate(0x600000, [7, 8])
    log.execute(0x600000, [7, 8])
    log.mark(AT_STOP)
    [found] = counted(counter, tmp_path, log.text).by_stretch()
    assert found == Counter({(0, 1): 4, (0, 2): 4, (0, 3): 3, (0, 7): 1, (0, 8): 1})


@pytest.fixture
def small_log() -> Log:
    log = Log()
    log.mark(AT_START)
    log.execute(0x600000, [1, 2])
    log.mark(AT_STOP)
    return log


@pytest.mark.parametrize(
    "line",
    [
        "TB 0: 0x7fef75200100 [80083009331/0000000000600000/1/2]",
        "Trace 0: 0x7fef75200100",
        "Trace 0: 0x7fef75200100 [80083009331/00000000006zzzzz/1/2] ",
        "Trace 0: 0x7fef75200100 [80083009331/0000000000700000/1/2] ",
        "Trace 99999999: 0x7fef75200100 [80083009331/0000000000600000/1/2] ",
        "Stopped execution of TB chain before 0x7fef75200100 [0000000000700000] ",
        "IN: \n\n",
        "IN: \n0x000000600000:  OBJD-T: 1f2003d5\n\n",
        "IN: \n0x000000600000:  d503201f  nop\n0x000000600008:  d503201f  nop\n\n",
        "IN: \n0x000000600000:  d503  nop\n\n",
        "qemu: uncaught target signal 11 (Segmentation fault)",
    ],
)
def test_a_log_that_looks_different_gives_no_counts(
    counter: Path, tmp_path: Path, small_log: Log, line: str
) -> None:
    small_log.lines.insert(-3, line)
    found = counted(counter, tmp_path, small_log.text)
    assert found.returncode == 1
    with pytest.raises(EvidenceError):
        found.read()


def test_a_log_that_was_cut_off_anywhere_gives_no_counts(
    counter: Path, tmp_path: Path, small_log: Log
) -> None:
    assert counted(counter, tmp_path, small_log.text).returncode == 0
    for size in range(0, len(small_log.text) - 1, 7):
        found = counted(counter, tmp_path, small_log.text[:size])
        assert found.returncode == 1, size
        with pytest.raises(EvidenceError):
            found.read()
