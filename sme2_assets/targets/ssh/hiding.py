"""Texts without addresses of machines, for whatever is kept or sent: summaries of nights, messages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sme2_assets.targets.ssh.address import SCHEME, Address

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
