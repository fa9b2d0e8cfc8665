"""Messages to people: a line in `data/nightly/messages.jsonl`, and a webhook if one is configured.

A message is never worth more than a measurement: errors here are logged, not raised. The file is the record;
the webhook may be down, and what it missed is not sent again.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException
from urllib.parse import urlsplit

from sme2_assets.store import Store

WEBHOOK_VARIABLE = "SME2_WEBHOOK_URL"
# Three attempts and their pauses stay below the 60 s that Dagster gives a sensor.
TIMEOUT_S = 15.0
ATTEMPTS = 3
PAUSE_S = 2.0


def post(
    message: str,
    store: Store,
    *,
    log: Callable[[str], None],
    timeout_s: float = TIMEOUT_S,
    attempts: int = ATTEMPTS,
    pause_s: float = PAUSE_S,
) -> bool:
    """Sends `{"text": message}` to `$SME2_WEBHOOK_URL` and keeps it; True if the webhook accepted it."""
    url = os.environ.get(WEBHOOK_VARIABLE, "").strip()
    trouble = (
        _deliver(url, message, timeout_s, attempts, pause_s) if url else f"{WEBHOOK_VARIABLE} is not set"
    )
    if url and trouble:
        log(f"The webhook did not accept the message: {trouble}. It is in {store.root / 'nightly'}.")
    _append(message, "delivered" if trouble is None else trouble, store, log)
    return trouble is None


def _deliver(url: str, message: str, timeout_s: float, attempts: int, pause_s: float) -> str | None:
    """What went wrong in the last attempt, or None. Never names the URL: it often holds a secret."""
    body = json.dumps({"text": message}).encode()
    trouble = "no attempt was made"
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause_s)
        try:
            if urlsplit(url).scheme not in ("http", "https"):
                raise ValueError("not of the web")
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
            with _opener.open(request, timeout=timeout_s):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            trouble = f"it answered {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, HTTPException) as error:
            trouble = f"it could not be reached ({type(getattr(error, 'reason', error)).__name__})"
        except ValueError:
            return f"{WEBHOOK_VARIABLE} is not an http or https address"
    return trouble


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET, whose success would look like a delivered message."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _append(message: str, webhook: str, store: Store, log: Callable[[str], None]) -> None:
    line = json.dumps({"at": datetime.now(UTC).isoformat(), "text": message, "webhook": webhook})
    path = store.root / "nightly" / "messages.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write in append mode: the night and a sensor may write at the same time.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, f"{line}\n".encode())
        finally:
            os.close(handle)
    except OSError as error:
        log(f"The message could not be kept in {path}: {error}")
