"""No page of another site may use the UI, which has no login.

A browser sends a request to this machine for any page that asks it to. Such a request names another site in
Host (when a name was made to point here), in Origin, or in Sec-Fetch-Site, or it is of a kind that a page can
send without being asked where it comes from. All of these are refused. A program on this machine sends none
of them and is let through. Nor may such a page show the UI within itself, where a person would click on it
without seeing it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Nothing but a host and a port: what else an address can have, such as a user, has no place in the header.
_HOST = re.compile(r"(?:\[(?P<in_brackets>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]+)?")
_JSON = ("application/json", "application/graphql")
# In addition to what a page says itself: of several policies, a browser applies each.
_NOT_FRAMED = {"Content-Security-Policy": "frame-ancestors 'self'", "X-Frame-Options": "SAMEORIGIN"}


class Guard:
    """Starlette middleware around the whole UI, its web sockets included."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self.app = app
        self.names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self.app(scope, receive, _never_framed(send))
        elif scope["type"] == "websocket":
            # Before it is accepted: the browser sees status 403.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        else:
            status, what = refusal
            await PlainTextResponse(f"{what}\n", status)(scope, receive, send)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason; None for a request that may pass."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_here(hosts[0]):
            return 421, (
                "This UI answers only to addresses and `localhost`. If it has a name, allow it: "
                "sme2 dev --allow-host NAME"
            )
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) != hosts[0].lower():
            return 403, "A page of another site may not use this UI."
        is_graphql = scope["path"].rstrip("/").endswith("/graphql")
        shown = (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and "text/html" in headers.get("accept", "")
            # A page of its own, not one within another.
            and headers.get("sec-fetch-dest", "document") == "document"
        )
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not shown:
            return 403, "A page of another site may not use this UI."
        if is_graphql and scope["type"] == "http" and not shown:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if scope["method"] != "POST" or kind not in _JSON:
                return 405, "Use POST, with the content type application/json."
        return None

    def _is_here(self, host: str) -> bool:
        """Whether it is a name of ours or a literal address, which no other name can be made to mean."""
        parts = _HOST.fullmatch(host.lower())
        if parts is None:
            return False
        if parts["name"] in self.names:
            return True
        try:
            if parts["in_brackets"]:
                ipaddress.IPv6Address(parts["in_brackets"])
            else:
                ipaddress.IPv4Address(parts["name"])
        except ValueError:
            return False
        return True


def _never_framed(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _NOT_FRAMED.items():
                headers.append(name, value)
        await send(message)

    return with_headers


def _host_of(origin: str) -> str | None:
    """The host and port of a page's address; None if it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
