"""The action for GitHub: its steps as they are written, against a server that answers as GitHub's does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from sme2_assets.gate.summary import MARK
from sme2_assets.store import CHECKOUT

ACTION = yaml.safe_load((CHECKOUT / "action.yml").read_text())
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step}


def run_step(name: str, environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """As GitHub's runner does it."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        cwd=cwd,
        text=True,
        capture_output=True,
        check=False,
    )


class _GitHub(BaseHTTPRequestHandler):
    comments: ClassVar[list[dict[str, Any]]]
    may_write = True

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        page, size = int(asked["page"][0]), int(asked["per_page"][0])
        self._answer(200, self.comments[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        self._write(lambda body: self.comments.append(_comment(len(self.comments), body)))

    def do_PATCH(self) -> None:
        number = int(self.path.rpartition("/")[2])
        self._write(lambda body: self.comments[number].update(body=body))

    def _write(self, change: Any) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
        if not self.may_write:
            self._answer(403, {})
            return
        assert self.headers["Authorization"] == "Bearer secret"
        change(body)
        self._answer(201, {})

    def _answer(self, code: int, content: Any) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: Any) -> None:
        pass


def _comment(number: int, body: str, kind: str = "Bot") -> dict[str, Any]:
    return {"id": number, "body": body, "user": {"type": kind}}


@pytest.fixture
def github() -> Iterator[type[_GitHub]]:
    class Handler(_GitHub):
        comments: ClassVar[list[dict[str, Any]]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["GITHUB_API_URL"] = f"http://127.0.0.1:{server.server_port}"
    yield Handler
    del os.environ["GITHUB_API_URL"]
    server.shutdown()
    server.server_close()


def say_it(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    answer = tmp_path / "answer.md"
    answer.write_text(text)
    facts = {"GITHUB_REPOSITORY": "me/net", "GITHUB_TOKEN": "secret", "PULL_REQUEST": "7"}
    paths = {"GITHUB_ACTION_PATH": str(CHECKOUT), "SUMMARY": str(answer)}
    return run_step("comment", {**facts, **paths}, tmp_path)


def test_the_comment_is_written_once_and_then_replaced(github: type[_GitHub], tmp_path: Path):
    github.comments.extend(_comment(number, "chat", "User") for number in range(250))
    # Somebody who writes the mark does not get their comment replaced.
    github.comments.append(_comment(250, f"{MARK} mine", "User"))
    for answer in ("first", "second"):
        assert say_it(tmp_path, f"{MARK}\n{answer}").returncode == 0
    assert [each["body"] for each in github.comments[250:]] == [f"{MARK} mine", f"{MARK}\nsecond"]


def test_a_token_that_may_only_read_is_no_failure(
    github: type[_GitHub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(github, "may_write", False)
    said = say_it(tmp_path, MARK)
    assert said.returncode == 0
    assert "::notice::" in said.stdout
    assert "403" in said.stdout


def test_models_and_options_may_be_on_several_lines(tmp_path: Path):
    sme2 = tmp_path / "bin" / "sme2"
    sme2.parent.mkdir()
    sme2.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/given"\n')
    sme2.chmod(0o755)
    done = run_step(
        "check",
        {
            "PATH": f"{sme2.parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "RUNNER_TEMP": str(tmp_path),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "step.md"),
            "SME2_DATA": str(tmp_path / "data"),
            "SME2_MODELS": "",
            "MODELS": "toy_cnn-int8\ntiny_lm-fp32\n",
            "BASELINE": "sme2_gate.json",
            "OPTIONS": "--size 0.05\n--accuracy 3\n",
        },
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    given = (tmp_path / "given").read_text().split()
    assert given[2:8] == ["toy_cnn-int8", "tiny_lm-fp32", "--size", "0.05", "--accuracy", "3"]
    assert given[8:10] == ["--baseline", "sme2_gate.json"]


def test_no_step_puts_an_expression_into_its_script():
    """What somebody names a branch or a model would be run."""
    assert all("${{" not in step.get("run", "") for step in ACTION["runs"]["steps"])


def test_every_input_is_used_and_every_input_that_is_used_exists():
    text = (CHECKOUT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([a-z-]+)", text)) == set(ACTION["inputs"])
