"""The tools and resources that an assistant is offered.

A tool answers with text to be read, and with the same facts as data. A failure that a person can fix is a
tool error with cause and remedy; for any other, the traceback goes to standard error and the assistant only
learns that the tool failed. Standard output belongs to the protocol; anything else written there goes to
standard error.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, redirect_stdout
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

import anyio
import anyio.lowlevel
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resources import FunctionResource, TextResource
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

import sme2_assets
from sme2_assets.api import DataFolder
from sme2_assets.errors import Sme2Error, told
from sme2_assets.experiments import trials
from sme2_assets.store import documents
from sme2_assets.targets.keys import PLATFORMS

if TYPE_CHECKING:
    import pandas as pd

INSTRUCTIONS = """\
Measures what Arm's SME2 matrix unit does for ExecuTorch models. To find out why a model is slow: `runs` shows
what was measured; `explain` says why and what to fix next; `compare` has the evidence; `advise` tries changes
and measures them; `profile` measures what is missing. `sql` answers what is left: read sme2://schema first.
Never state a speedup without its interval and n. The platform `emulated` has no times, only kernels and
outputs: do not invent any. Do not measure while anything else runs on the machine. An error says what to do:
do that first.
"""
MOST_ROWS = 1000
MOST_SECONDS = 60.0
# An answer that fills an assistant's context helps nobody.
MOST_CHARACTERS = 60_000

Model = Annotated[str, Field(description="A model and its precision, as in toy_cnn-int8")]
Platform = Annotated[
    Literal["linux", "mac", "android", "emulated"] | None,
    Field(description="Where it was measured; needed where there are several"),
]
Device = Annotated[str | None, Field(description="The device, where a platform has several")]
Given = ParamSpec("Given")
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MEASURES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def serve(lab: DataFolder) -> None:
    """Answers on standard input and output until the assistant hangs up."""
    server_of(lab).run("stdio")


def server_of(lab: DataFolder) -> MCPServer[Any]:
    """The server of a data folder."""
    server: MCPServer[Any] = MCPServer(
        "sme2",
        instructions=INSTRUCTIONS,
        version=sme2_assets.__version__,
        lifespan=_own_output,
        log_level="WARNING",
    )
    _add_questions(server, lab)
    _add_measurements(server, lab)
    _add_resources(server)
    return server


@asynccontextmanager
async def _own_output(server: MCPServer[Any]) -> AsyncIterator[None]:
    """The SDK diverts the descriptor; what is left in Python's buffer would reach the client at the end."""
    with redirect_stdout(sys.stderr):
        yield


def _tool(
    server: MCPServer[Any], annotations: ToolAnnotations
) -> Callable[[Callable[Given, CallToolResult]], None]:
    """Registers a function whose errors have a remedy."""

    def register(function: Callable[Given, CallToolResult]) -> None:
        @wraps(function)
        def answer(*given: Given.args, **named: Given.kwargs) -> CallToolResult:
            try:
                return function(*given, **named)
            except KeyboardInterrupt as cancelled:
                # It would end the server. The answer is for nobody: who cancels does not wait for one.
                raise ToolError("Cancelled.") from cancelled
            except Exception as error:
                known = told(error)
                if known is None:
                    raise
                raise ToolError(str(known)) from error

        server.add_tool(answer, annotations=annotations)

    return register


def _add_questions(server: MCPServer[Any], lab: DataFolder) -> None:
    reads = partial(_tool, server, READS)

    @reads()
    def models(everything: bool = False) -> CallToolResult:
        """The models that can be profiled, with their precisions. everything: also those built on request."""
        return _table(lab.models(everything=everything))

    @reads()
    def targets() -> CallToolResult:
        """Where a model can be measured from here, with SME2 on and off, and what the other places need."""
        return _table(lab.targets())

    @reads()
    def runs(model: str | None = None, platform: Platform = None) -> CallToolResult:
        """What was measured, the newest first. median_ns is the latency; emulated runs have none."""
        return _table(lab.runs(model, platform))

    @reads()
    def explain(model: Model, platform: Platform = None, device: Device = None) -> CallToolResult:
        """Why a measured model is as fast as it is, which operators miss the SME unit, what to fix next."""
        found = lab.explain(model, platform, device)
        return _answer(repr(found), found.as_json())

    @reads()
    def compare(model: Model, platform: Platform = None, device: Device = None) -> CallToolResult:
        """SME2 on against off, newest session: verdict, speedup with its interval, kernels by category."""
        found = lab.compare(model, platform, device)
        names = ("variant", "platform", "device", "fidelity", "session_id", "off_run_id", "on_run_id")
        facts = {name: getattr(found, name) for name in (*names, "verdict", "reason", "speedup", "interval")}
        return _answer(repr(found), {**facts, "n": found.rounds, "unit_use": _records(found.unit)})

    @reads()
    def sql(
        query: Annotated[
            str, Field(description="One SELECT, DESCRIBE, SHOW TABLES or SUMMARIZE, in DuckDB's SQL")
        ],
        limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 200,
        timeout_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 30.0,
    ) -> CallToolResult:
        """Rows of a query on the warehouse, which it can only read. sme2://schema has tables and columns."""
        from sme2_assets.warehouse.console import Limits, json_row, open_console

        with open_console(lab.warehouse, Limits(timeout_s, "1GB")) as console:
            answer = console.ask(query, limit)
        return _rows(list(answer.columns), map(json_row, answer.rows), answer.more)

    @_tool(server, ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True))
    def report(model: Model, platform: Platform = None, device: Device = None) -> CallToolResult:
        """Writes the report of a measured model, and says where it is and what it says first."""
        found = lab.report(model, platform, device)
        files = [str(found.page), str(found.markdown_file)]
        return _answer(repr(found), {"session_id": found.session_id, "files": files})


def _add_measurements(server: MCPServer[Any], lab: DataFolder) -> None:
    measures = partial(_tool, server, MEASURES)
    # Two measurements at once would disturb each other.
    alone = threading.Lock()

    @measures()
    def profile(
        context: Context[Any, Any],
        model: Annotated[str, Field(description="A model, with or without precision, or the path of a .pte")],
        platform: Annotated[str, Field(description=f"auto, or one of {', '.join(PLATFORMS)}")] = "auto",
        sme2: Literal["both", "on", "off"] = "both",
        threads: Annotated[int, Field(ge=1)] = 1,
        rounds: Annotated[
            int | None, Field(ge=1, description="Rounds; left out: as many as it takes")
        ] = None,
        device: Device = None,
    ) -> CallToolResult:
        """Measures a model with SME2 on and off. Takes seconds to minutes and reports progress. Nothing else
        may run on the machine at the same time."""
        if platform not in ("auto", *PLATFORMS):
            raise Sme2Error(f"There is no platform {platform!r}.", f"Use auto, {', '.join(PLATFORMS)}.")
        settings: dict[str, Any] = {"threads": threads, **({"rounds": rounds} if rounds else {})}
        said = _Progress(context)
        with alone:
            found = lab.profile(model, platform=platform, sme2=sme2, device=device, log=said, **settings)
        notes = [line for line in said.lines if line.startswith("note: ") or " was left out: " in line]
        text = "\n".join([f"Measured {len(found)} runs; `explain` and `compare` say what they show.", *notes])
        return _answer(text, {"runs": _records(found), "notes": notes})

    @measures()
    def advise(
        context: Context[Any, Any], model: Model, rewrites: bool = True, precisions: bool = True
    ) -> CallToolResult:
        """Makes changes to a model, other precisions and ways to write it, and measures which bring more of
        it onto the SME unit. Takes minutes; emulated, so it works on any machine."""
        with alone, lab.chosen():
            found = trials.advise(
                lab.store, model, _Progress(context), rewrites=rewrites, precisions=precisions
            )
        return _json(found.as_json())

    @measures()
    def gate(
        context: Context[Any, Any],
        baseline: Annotated[
            str, Field(description="The file that `sme2 gate record` wrote")
        ] = "sme2_gate.json",
        models: Annotated[list[str] | None, Field(description="Of those in it; left out: all")] = None,
    ) -> CallToolResult:
        """Whether models lost an SME2 kernel, delegation or accuracy, or grew, since a baseline."""
        with alone, lab.chosen():
            done = trials.check(lab.store, Path(baseline).expanduser(), models or (), _Progress(context))
        return _answer(done.text, {"lost": done.lost})


def _add_resources(server: MCPServer[Any]) -> None:
    server.add_resource(
        FunctionResource(
            uri="sme2://schema",
            name="schema",
            title="The warehouse: tables, views and columns, with their meaning",
            mime_type="text/markdown",
            fn=_schema,
        )
    )
    for page in documents():
        text = page.read_text(encoding="utf-8")
        server.add_resource(
            TextResource(
                uri=f"sme2://docs/{page.name}",
                name=page.stem,
                title=text.partition("\n")[0].removeprefix("# "),
                mime_type="text/markdown",
                text=text,
            )
        )


def _schema() -> str:
    from sme2_assets.warehouse.docs import schema_markdown

    try:
        return schema_markdown()
    except Sme2Error as error:
        raise ResourceError(str(error)) from error


class _Progress:
    """Reports each line of a measurement to the assistant. Made in the thread that the tool runs in.

    Once the assistant has cancelled the call, the next line of that thread ends the measurement as Ctrl-C
    would. Arms that are emulated side by side have threads of their own, which know nothing of the call.
    """

    def __init__(self, context: Context[Any, Any]) -> None:
        self._context = context
        self._thread = threading.get_ident()
        self._loop = anyio.from_thread.run_sync(anyio.lowlevel.current_token)
        self.lines: list[str] = []

    def __call__(self, message: str) -> None:
        self.lines.append(message)
        if threading.get_ident() == self._thread:
            try:
                anyio.from_thread.check_cancelled()
            except BaseException as cancelled:
                raise KeyboardInterrupt from cancelled
        report = partial(self._context.report_progress, len(self.lines), None, message)
        anyio.from_thread.run(report, token=self._loop)


def _answer(text: str, facts: dict[str, Any]) -> CallToolResult:
    content = TextContent(type="text", text=_cut(text))
    return CallToolResult(content=[content], structured_content=json.loads(json.dumps(facts, default=str)))


def _json(facts: dict[str, Any]) -> CallToolResult:
    return _answer(json.dumps(facts, indent=1, default=str), facts)


def _table(frame: pd.DataFrame) -> CallToolResult:
    rows = [list(row.values()) for row in _records(frame)]
    return _rows(list(map(str, frame.columns)), rows[:MOST_ROWS], len(rows) > MOST_ROWS)


def _rows(columns: list[str], rows: Iterable[list[Any]], more: bool) -> CallToolResult:
    """As many rows as an answer holds, a line each; `more` when there are others."""
    kept: list[list[Any]] = []
    lines: list[str] = []
    size = 0
    for row in rows:
        line = json.dumps(row, default=str)
        size += len(line)
        if size > MOST_CHARACTERS:
            more = True
            break
        kept.append(row)
        lines.append(line)
    note = f"the first rows, {len(kept)}; there are more" if more else f"rows: {len(kept)}"
    text = "\n".join([json.dumps(columns), *lines, note])
    return _answer(text, {"columns": columns, "rows": kept, "more": more})


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso"))
    return made


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n... cut here; `sql` and the report have the rest."
