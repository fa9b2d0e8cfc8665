"""What all commands of `sme2` share: where they print, and the option for programs."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from sme2_assets.diagnostics.steps import FAILED, NOT_REACHED, NOTE, CheckStep, Checkup
from sme2_assets.errors import Sme2Error, printable
from sme2_assets.store import Store

if TYPE_CHECKING:
    from rich.progress import Progress


class Printer(Console):
    """Prints text from outside as it is: characters that would control the terminal are shown as codes.

    Nothing is read as Rich's markup, for names have brackets, too.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.replace("\n", "").isprintable():
                yield segment
            else:
                lines = "\n".join(printable(line) for line in segment.text.split("\n"))
                yield Segment(lines, segment.style)


# A pipe or a file has no width: nothing printed there is cut.
# A program whose standard output is closed has none.
out = Printer() if sys.stdout is not None and sys.stdout.isatty() else Printer(width=250)
progress = Printer(stderr=True)


def reads_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Passes the data folder to a command for what is in it. It must exist: a mistyped one looks empty."""

    @click.pass_obj
    @functools.wraps(command)
    def given(store: Store, *args: Any, **options: Any) -> Any:
        if not store.root.is_dir():
            raise Sme2Error(
                f"There is no data folder {store.root}.",
                "Check --data and $SME2_DATA. If nothing was measured yet, run `sme2 profile MODEL` first.",
            )
        return command(store, *args, **options)

    return given


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def say(text: str, style: str | None = None) -> None:
    """A line on standard output, as it is: not cut or wrapped."""
    out.print(text, style=style, highlight=False, soft_wrap=True)


def tell(text: str, style: str | None = None) -> None:
    """The same on standard error, where progress and notes go."""
    progress.print(text, style=style, highlight=False, soft_wrap=True)


@contextmanager
def status_line(first: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being done; call it with what comes next."""
    # Rich reads a status as markup whatever the console says.
    with progress.status(Text(first)) as status:
        yield lambda message: status.update(Text(message))


class ProgressLog:
    """Shows progress: call it with what is being done, and `reached` with how much is done.

    On a terminal one bar with the time left; with -v, or without a terminal, one line per message.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)
        self._lines = _verbose or not progress.is_terminal

    def __call__(self, message: str) -> None:
        self._bar.update(self._task, description=printable(message))
        if self._lines:
            tell(message, "dim")

    def reached(self, share: float) -> None:
        """How much of the whole is done, from 0 to 1."""
        self._bar.update(self._task, total=1.0, completed=share)


_verbose = False


def _set_verbose(context: click.Context, option: click.Parameter, value: bool) -> None:
    global _verbose
    _verbose = value


verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_set_verbose,
    help="Show every step, including the compiler's, instead of one bar.",
)


@contextmanager
def progress_log() -> Iterator[ProgressLog]:
    """A bar on standard error, removed when the work is done."""
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    text = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=text),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    # Without a terminal there is nothing to draw on.
    with Bar(
        *columns, console=progress, expand=True, transient=True, disable=not progress.is_terminal
    ) as bar:
        yield ProgressLog(bar)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def given_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a model can be given besides its options; `variants_of` turns it into variants."""
    for option in (
        click.option(
            "--op-library",
            type=click.Path(path_type=Path),
            help="A library with kernels that the program calls and the runner lacks.",
        ),
        click.option(
            "--inputs",
            type=click.Path(path_type=Path),
            help="Your own inputs: a .npz file, or a folder of .npy files, named input_0, input_1, ... in "
            "order, or after the parameters of forward().",
        ),
    ):
        command = option(command)
    return command


class AtLeast(click.FloatRange):
    """A number from a least one on. Anything compares with NaN, and nothing would be beyond it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def variants_of(
    model: str, inputs: Path | None = None, op_library: Path | None = None, sizes: Sequence[str] = ()
) -> list[str]:
    """The variants that a command's arguments mean."""
    from sme2_assets.models import registry

    asked: dict[str, list[str]] = {}
    for name, values in map(_sizes, sizes):
        asked[name] = list(dict.fromkeys((*asked.get(name, ()), *values)))
    return registry.variants_of(model, inputs, op_library, asked, tell)


def _sizes(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name.isidentifier() and equals and all(value.isdecimal() for value in values.split(","))):
        raise click.UsageError(
            f"--sizes wants a dimension and its sizes, as in seq=16,128,512, not {text!r}."
        )
    return name, values.split(",")


_MARKS = {
    "passed": Text("passed", "green"),
    "note": Text("note  ", "yellow"),
    "failed": Text("FAILED", "red"),
    "not reached": Text("not reached", "dim"),
}


def print_step(step: CheckStep, width: int = 16) -> None:
    """A line for a step; below it what went wrong, and what to do."""
    problem = f"{step.problem or ''}"
    style = {FAILED: "red", NOTE: "yellow"}.get(step.status)
    timing = f" {step.seconds:6.1f} s" if step.status != NOT_REACHED else ""
    out.print(Text(f"  {step.name:{width}} "), end="", highlight=False)
    out.print(Text.assemble(_MARKS[step.status], f"{timing}  "), end="", highlight=False)
    if step.detail or not problem:
        out.print(step.detail, highlight=False, soft_wrap=True)
    if problem:
        indent = "    " if step.detail else ""
        out.print(f"{indent}{problem}", style=style, highlight=False, soft_wrap=True)
        if step.remedy:
            out.print(f"    What to do: {step.remedy}", highlight=False, soft_wrap=True)


def print_steps(made: Checkup) -> None:
    width = max(16, *(len(step.name) for step in made.steps))
    for step in made.steps:
        print_step(step, width)
