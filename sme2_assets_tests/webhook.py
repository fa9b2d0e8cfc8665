"""A webhook to receive messages: a real HTTP server in a thread of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Webhook:
    """What was received, and how to answer the next requests (200 when nothing is said)."""

    received: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [body["text"] for _, body in self.received]


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """Listens on the address that SME2_WEBHOOK_URL names."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.received.append((dict(self.headers), json.loads(body)))
            answer = hook.answers.pop(0) if hook.answers else 200
            self.send_response(answer)
            if answer == 302:
                self.send_header("Location", "/login")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            """Where a redirect would lead: a page that says 200 and takes no message."""
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("SME2_WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}/hook")
        yield hook
        server.shutdown()
        thread.join()
