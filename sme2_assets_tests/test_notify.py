"""Messages reach a real HTTP server and the file; what is wrong with the server stays with the server."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sme2_assets.defs import notify
from sme2_assets.store import Store
from sme2_assets_tests.webhook import Webhook, webhook  # noqa: F401  (a fixture)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def kept(store: Store) -> list[dict[str, str]]:
    return [json.loads(line) for line in (store.root / "nightly" / "messages.jsonl").read_text().splitlines()]


def test_a_message_reaches_the_webhook_and_the_file(store: Store, webhook: Webhook):  # noqa: F811
    assert notify.post("größer als\nzwei Zeilen", store, log=print)
    [(headers, body)] = webhook.received
    assert headers["Content-Type"] == "application/json"
    assert body == {"text": "größer als\nzwei Zeilen"}
    [line] = kept(store)
    assert (line["text"], line["webhook"]) == ("größer als\nzwei Zeilen", "delivered")


def test_a_server_that_recovers_gets_the_message_once(store: Store, webhook: Webhook):  # noqa: F811
    webhook.answers = [503, 429, 200]
    assert notify.post("again", store, log=print, pause_s=0)
    assert len(webhook.received) == 3
    assert [line["webhook"] for line in kept(store)] == ["delivered"]


@pytest.mark.parametrize(("answer", "attempts"), [(500, 3), (404, 1), (302, 1)])
def test_a_server_that_refuses_is_noted(store: Store, webhook: Webhook, answer: int, attempts: int):  # noqa: F811
    webhook.answers = [answer] * 5
    said: list[str] = []
    assert not notify.post("no", store, log=said.append, pause_s=0)
    assert len(webhook.received) == attempts
    assert kept(store)[0]["webhook"] == f"it answered {answer}"
    assert str(answer) in said[0]


def test_a_server_that_never_answers_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SME2_WEBHOOK_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        assert not notify.post("hello?", store, log=print, timeout_s=0.1, attempts=2, pause_s=0)
    assert "could not be reached" in kept(store)[0]["webhook"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/secret",
        "http://no.such.host.invalid/secret",
        "file:///secret",
        "secret",
        "http://[",
    ],
)
def test_an_unreachable_webhook_fails_nothing_and_its_address_is_not_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, url: str
):
    monkeypatch.setenv("SME2_WEBHOOK_URL", url)
    said: list[str] = []
    assert not notify.post("kept", store, log=said.append, attempts=2, pause_s=0)
    [line] = kept(store)
    assert line["text"] == "kept"
    assert line["webhook"] != "delivered"
    assert len(said) == 1
    assert "secret" not in said[0] + line["webhook"]


def test_without_a_webhook_the_file_is_the_record(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SME2_WEBHOOK_URL", raising=False)
    said: list[str] = []
    assert not notify.post("one", store, log=said.append)
    assert not notify.post("two", store, log=said.append)
    assert [line["text"] for line in kept(store)] == ["one", "two"]
    assert said == []


def test_a_file_that_cannot_be_written_fails_nothing(store: Store, webhook: Webhook):  # noqa: F811
    store.root.mkdir()
    (store.root / "nightly").write_text("not a folder")
    said: list[str] = []
    assert notify.post("sent all the same", store, log=said.append)
    assert len(webhook.received) == 1
    assert "could not be kept" in said[0]
