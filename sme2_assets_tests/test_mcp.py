"""The door for assistants, through the SDK's own client: in this process, and through a real one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult

from sme2_assets.api import DataFolder
from sme2_assets.mcp.server import _Progress, server_of
from sme2_assets.store import CHECKOUT
from sme2_assets.targets.host import host_platform
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.made import MadeOnce
from sme2_assets_tests.test_api import copy_of_two_pairs

PAGE = CHECKOUT / "docs" / "assistants.md"
Got = TypeVar("Got")
TOOLS = {"models", "targets", "runs", "explain", "compare", "sql", "report", "profile", "advise", "gate"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, made_once: MadeOnce) -> Path:
    return copy_of_two_pairs(made_once, tmp_path_factory.mktemp("assistant"))


def talk_with_a_process(root: Path, conversation: Callable[[Client], Awaitable[Got]]) -> Got:
    """What comes of a conversation with `sme2 mcp` on a data folder."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sme2_assets.cli", "--data", str(root), "mcp"],
        env={"PYTHONPATH": str(CHECKOUT), "DAGSTER_HOME": str(root / "dagster_home")},
        cwd=root,
    )

    async def held() -> Got:
        with (root / "stderr.txt").open("a") as errors:
            async with Client(stdio_client(server, errlog=errors)) as client:
                return await conversation(client)

    return anyio.run(held)


def talk(root: Path, conversation: Callable[[Client], Awaitable[Got]]) -> Got:
    """The same in this process."""

    async def held() -> Got:
        async with Client(server_of(DataFolder(root))) as client:
            return await conversation(client)

    with contextlib.chdir(root):
        return anyio.run(held)


def ask(
    root: Path, *calls: tuple[str, dict[str, Any]], talk: Callable[..., list[CallToolResult]] = talk
) -> list[CallToolResult]:
    async def all_of_them(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(name, arguments) for name, arguments in calls]

    return talk(root, all_of_them)


def text(result: CallToolResult) -> str:
    [content] = result.content
    return content.text  # type: ignore[union-attr]


def test_tools_and_resources_are_listed_and_read(root: Path):
    async def look(client: Client) -> tuple[Any, ...]:
        tools, resources = await client.list_tools(), await client.list_resources()
        pages = [await client.read_resource(f"sme2://{name}") for name in ("schema", "docs/measuring.md")]
        return tools.tools, resources.resources, [page.contents[0].text for page in pages]

    tools, resources, (schema, page) = talk(root, look)
    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.description for tool in tools)
    assert {tool.name for tool in tools if tool.annotations.read_only_hint} == TOOLS - {
        *("report", "profile", "advise", "gate")
    }
    uris = {str(resource.uri) for resource in resources}
    assert uris == {"sme2://schema", *(f"sme2://docs/{doc.name}" for doc in (CHECKOUT / "docs").glob("*.md"))}
    assert "## Table `runs`" in schema
    assert page == (CHECKOUT / "docs" / "measuring.md").read_text()


def test_why_is_my_model_slow_is_answered_with_evidence(root: Path):
    """As an assistant goes: what is there, why, the evidence, and a question of its own."""
    runs, why, pair, rows = ask(
        root,
        ("runs", {"model": "toy_cnn"}),
        ("explain", {"model": "toy_cnn-fp32", "platform": "linux"}),
        ("compare", {"model": "toy_cnn-fp32", "platform": "linux"}),
        ("sql", {"query": "SELECT name, on_sme_unit FROM operator_facts WHERE sme2 = 'on' ORDER BY ALL"}),
        talk=talk_with_a_process,
    )
    assert not any(result.is_error for result in (runs, why, pair, rows))
    assert len(runs.structured_content["rows"]) == 4
    titles = [insight["title"] for insight in why.structured_content["insights"]]
    assert titles
    assert "### CONV and GEMM not on the SME unit" in text(why)
    facts = pair.structured_content
    low, high = facts["interval"]
    assert low <= facts["speedup"] <= high
    assert f"{facts['speedup']:.2f}x ({low:.2f} to {high:.2f}, n={facts['n']})" in text(pair)
    assert [
        state for state in ("on", "off") if any(row[1] == state for row in rows.structured_content["rows"])
    ] == ["on", "off"]


def test_an_emulated_answer_has_no_time(root: Path):
    pair, runs = ask(
        root,
        ("compare", {"model": "toy_cnn-fp32", "platform": "emulated"}),
        ("runs", {"platform": "emulated"}),
    )
    assert [pair.structured_content[name] for name in ("speedup", "interval", "n")] == [None] * 3
    column = runs.structured_content["columns"].index("median_ns")
    assert {row[column] for row in runs.structured_content["rows"]} == {None}


HOSTILE = {
    "COPY (SELECT 42) TO 'escaped.csv'": "Only queries are allowed",
    "SELECT * FROM read_text('/etc/passwd')": "reaches outside the warehouse",
    "ATTACH 'other.duckdb'; SELECT 1": "Only queries are allowed",
    "SET memory_limit = '100GB'": "Only queries are allowed",
    "SELECT * FROM 'stderr.txt'": "The query",
    "SELECT 1; SELECT 2": "These are 2 queries",
    "INSTALL httpfs": "Only queries are allowed",
    "SELEC 1": "The query failed",
}


def test_hostile_queries_come_back_as_errors_with_a_remedy_and_leave_nothing(root: Path):
    (root / "stderr.txt").touch()
    before = sorted(path.name for path in root.iterdir())
    results = ask(root, *(("sql", {"query": query}) for query in HOSTILE))
    for result, (query, words) in zip(results, HOSTILE.items(), strict=True):
        assert result.is_error, query
        assert words in text(result)
        assert "Traceback" not in text(result)
    assert sorted(path.name for path in root.iterdir()) == before


def test_a_query_is_cut_by_rows_by_size_and_by_time(root: Path):
    few, long, slow, refused = ask(
        root,
        ("sql", {"query": "FROM range(50)", "limit": 3}),
        ("sql", {"query": "SELECT repeat('x', 10000) FROM range(100)"}),
        ("sql", {"query": "SELECT count(*) FROM range(10000000000) a, range(1000) b", "timeout_s": 0.5}),
        ("sql", {"query": "SELECT 1", "limit": 100000}),
    )
    assert few.structured_content == {"columns": ["range"], "rows": [[0], [1], [2]], "more": True}
    assert 0 < len(long.structured_content["rows"]) < 100
    assert long.structured_content["more"]
    assert "took longer than 0.5 seconds" in text(slow)
    assert refused.is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("explain", {"model": "toy_cn-fp32"}, "did you mean 'toy_cnn'"),
        ("explain", {"model": "toy_cnn"}, "toy_cnn-fp32 on emulated"),
        ("profile", {"model": "no_such_model"}, "There is no model"),
        ("profile", {"model": "toy_cnn-fp32", "platform": "windows"}, "There is no platform"),
        ("gate", {}, "sme2_gate.json is missing"),
        ("advise", {"model": "toy_cnn-fp31"}, "toy_cnn"),
    ],
)
def test_what_goes_wrong_is_said_with_cause_and_remedy(
    root: Path, tool: str, arguments: dict[str, Any], words: str
):
    [result] = ask(root, (tool, arguments))
    assert result.is_error
    assert words in text(result)
    assert "What to do: " in text(result)
    assert "Traceback" not in text(result)


def test_a_defect_of_ours_ends_neither_the_server_nor_its_silence(root: Path, tmp_path: Path):
    """A folder in the database's place, which nothing can mend: the next question is answered."""
    (tmp_path / "warehouse.duckdb").mkdir()
    broken, fine = ask(tmp_path, ("runs", {}), ("models", {}))
    assert broken.is_error
    assert "Traceback" not in text(broken)
    assert not fine.is_error


NOISY = """
import os, sys
from pathlib import Path
from sme2_assets.api import DataFolder
from sme2_assets.mcp.server import server_of

server = server_of(DataFolder(Path(sys.argv[1])))

@server.tool()
def noisy() -> str:
    sys.stdout.write("unfinished noise of Python")
    os.system("echo noise of a compiler")
    return "done"

server.run("stdio")
"""


def test_nothing_but_the_protocol_goes_to_standard_output(root: Path):
    """Every line is a message, to the last one, however much a tool and its programs talk."""
    asked = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "0"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        *(
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "tools/call",
                "params": {"name": name, "arguments": {}},
            }
            for number, name in ((2, "noisy"), (3, "models"))
        ),
    ]
    with subprocess.Popen(
        [sys.executable, "-c", NOISY, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": ""},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        for message in asked:
            server.stdin.write(json.dumps(message) + "\n")
            server.stdin.flush()
        lines = [server.stdout.readline() for _ in range(3)]
        server.stdin.close()
        lines += server.stdout.readlines()
        errors = server.stderr.read()
    assert sorted(json.loads(line)["id"] for line in lines) == [1, 2, 3]
    assert "noise of a compiler" in errors
    assert "unfinished noise of Python" in errors


def test_lines_from_threads_of_a_measurement_are_progress_and_no_cancellation():
    """Emulated arms are measured side by side, in threads that the server did not start."""
    reported: list[tuple[float, str]] = []

    class Assistant:
        async def report_progress(self, progress: float, total: float | None, message: str) -> None:
            reported.append((progress, message))

    def measure() -> None:
        progress = _Progress(Assistant())  # type: ignore[arg-type]
        progress("begun")
        with ThreadPoolExecutor(1) as arms:
            arms.submit(progress, "too few samples").result()
        progress("done")

    async def tool() -> None:
        await anyio.to_thread.run_sync(measure)

    anyio.run(tool)
    assert reported == [(1, "begun"), (2, "too few samples"), (3, "done")]


def test_a_cancelled_measurement_ends_and_leaves_nothing(tmp_path: Path, artifacts_dir: Path):
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    heard: list[str] = []

    async def change_of_mind(client: Client) -> CallToolResult:
        async def stop(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message or "")
            scope.cancel()

        with anyio.CancelScope() as scope:
            await client.call_tool(
                "profile", {"model": "toy_cnn-fp32", "platform": host_platform()}, progress_callback=stop
            )
        # Measurements wait for one another: this one is answered once the other has ended.
        return await client.call_tool("gate", {})

    answer = talk_with_a_process(store.root, change_of_mind)
    assert "sme2_gate.json is missing" in text(answer)
    assert heard
    assert not list(store.runs.glob("*"))


def documented_calls() -> list[tuple[str, dict[str, Any]]]:
    """The calls of the transcript in docs/assistants.md."""
    found = re.findall(r"^> (\w+) (\{.*\})$", PAGE.read_text(), re.MULTILINE)
    return [(name, json.loads(arguments)) for name, arguments in found]


def test_the_calls_of_the_documented_conversation_are_answered(root: Path):
    calls = documented_calls()
    assert len(calls) >= 4
    assert not [text(result) for result in ask(root, *calls) if result.is_error]


def test_the_page_names_every_tool_and_no_other():
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert set(listed) == TOOLS


def write_transcript(root: Path) -> None:
    """Puts what a data folder answers to the documented calls into the page, each answer behind its call."""
    calls = documented_calls()
    said = [
        f"> {name} {json.dumps(given)}\n{text(result)}"
        for (name, given), result in zip(calls, ask(root, *calls), strict=True)
    ]
    head, begin, rest = PAGE.read_text().partition("```text transcript\n")
    _, end, after = rest.partition("\n```\n")
    PAGE.write_text(head + begin + "\n\n".join(part.strip() for part in said) + end + after)


@pytest.mark.thorough
def test_a_measurement_tells_its_progress_and_what_it_shows(
    tmp_path: Path, artifacts_dir: Path, emulator: Qemu
):
    """From nothing to the answer: measure, then ask which operators miss the unit."""
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    told: list[tuple[float, str | None]] = []

    async def measure(client: Client) -> tuple[CallToolResult, CallToolResult]:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append((done, message))

        wanted = {"model": "toy_cnn-fp32", "platform": "emulated"}
        measured = await client.call_tool("profile", wanted, progress_callback=progress)
        return measured, await client.call_tool("explain", wanted)

    measured, why = talk_with_a_process(store.root, measure)
    assert not measured.is_error, text(measured)
    assert len(measured.structured_content["runs"]) == 2
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert any("round" in (message or "") for _, message in told)
    assert not why.is_error
    [missed] = [each for each in why.structured_content["insights"] if each["kind"] == "missed_sme2"]
    assert "depthwise" in missed["title"]


if __name__ == "__main__":
    write_transcript(Path(sys.argv[1]))
