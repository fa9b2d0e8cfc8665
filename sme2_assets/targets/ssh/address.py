"""The address of a machine: `ssh://user@host:port`. The user's ssh_config supplies anything left out.

Also texts without addresses, for whatever is kept or sent: summaries of nights, messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sme2_assets.errors import Sme2Error

SCHEME = "ssh://"
# None begins with a dash, which would make it an option of the client.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")


@dataclass(frozen=True)
class Address:
    """Where a machine is; `host` may be a name from the user's own ssh_config."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return SCHEME + (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")

    @property
    def words(self) -> list[str]:
        """The address as arguments for the client."""
        port = ["-p", str(self.port)] if self.port else []
        return [*port, f"{self.user}@{self.host}" if self.user else self.host]

    @property
    def known_as(self) -> str:
        """The name under which the client remembers its key."""
        return self.host if self.port in (None, 22) else f"[{self.host}]:{self.port}"


def parse_address(text: str) -> Address:
    """The text as an address; an Sme2Error says what is wrong with it."""
    # A password is not shown, whatever else is wrong and whatever characters it has.
    if re.search(r":.*@", re.sub(r"^\w*://", "", text), re.DOTALL):
        raise _wrong(SCHEME + "...", "it has a password, and only keys are used")
    if not text.startswith(SCHEME):
        raise _wrong(text, f"it does not begin with {SCHEME}")
    place = text.removeprefix(SCHEME).removesuffix("/")
    if re.search(r"[/?#]", place):
        raise _wrong(text, "there is something after host and port")
    user, at, rest = place.rpartition("@")
    split = re.fullmatch(r"(?:\[(?P<literal>[^\]]*)\]|(?P<name>[^:]*))(?::(?P<port>.*))?", rest, re.DOTALL)
    host = (split["literal"] or split["name"] or "") if split else rest
    if not _HOST.fullmatch(host):
        raise _wrong(text, f"{host!r} cannot be the name of a host" if host else "it names no host")
    if at and not _USER.fullmatch(user):
        raise _wrong(text, f"{user!r} cannot be the name of a user")
    port = split["port"] if split else None
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise _wrong(text, f"{port!r} is not a port")
    return Address(host, user or None, int(port) if port else None)


def _wrong(text: str, why: str) -> Sme2Error:
    return Sme2Error(
        f"{text!r} is not the address of a machine: {why}.", "Write ssh://user@host or ssh://user@host:port."
    )


_HIDDEN = "(address)"
# Addresses of machines without a name, and places that the client names as its configuration does.
_PLACES = re.compile(
    SCHEME
    + r"[\w.@:%\[\]-]*[\w\]]"
    + r"|[\w.-]+@[\w.:%\[\]-]*[\w\]]"
    + r"|(?P<before>\b(?:host|by|to|with) )(?P<place>\S+)(?= port \d)"
    + r"|(?P<also_before>\b(?:resolve hostname|Timeout, server) )(?P<also>[^\s:]+)"
)
# Where a host without a dot is one: elsewhere, the same letters may be a plain word.
_BEFORE_HOST = r"\b(?:host|hostname|ssh|ssh-copy-id|ssh-keygen -R|-p \d+) "


def without_addresses(text: str, names: Mapping[Address, str]) -> str:
    """The text with the names of machines in place of their addresses; all other addresses are left out."""
    for address, name in names.items():
        text = _named(text, address, name)

    def hidden(found: re.Match[str]) -> str:
        if (found["place"] or found["also"]) in names.values():
            return found[0]
        return (found["before"] or found["also_before"] or "") + _HIDDEN

    return _PLACES.sub(hidden, text)


def _named(text: str, address: Address, name: str) -> str:
    end = r"(?![\w-]|\.\w)"
    for form in (str(address), address.words[-1], address.known_as):
        # The last two may be no more than a host.
        if form != address.host:
            text = re.sub(rf"(?<![\w.-]){re.escape(form)}{end}", name, text)
    host = re.escape(address.host)
    if re.search(r"[.:]", address.host):
        return re.sub(rf"(?<![\w.-]){host}{end}", name, text)
    return re.sub(rf"({_BEFORE_HOST}){host}{end}", rf"\g<1>{name}", text)
