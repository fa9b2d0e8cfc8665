"""The shell programs that run on a device, and the one function that quotes a command for its shell.

The programs are the files of `scripts/`. What differs from call to call is always a positional parameter,
never part of a program's text.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from sme2_assets.errors import Sme2Error

#: adb writes the length of a request in four hexadecimal digits.
_MAX_COMMAND_BYTES = 60_000


def shell_program(*names: str) -> str:
    """The text of `scripts/<name>.sh`; several are joined, so that the last can use the others."""
    folder = resources.files(__package__) / "scripts"
    return "".join((folder / f"{name}.sh").read_text(encoding="utf-8") for name in names)


@dataclass(frozen=True)
class Script:
    """A POSIX shell program and its positional parameters."""

    text: str
    arguments: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        return ["sh", "-c", self.text, "sme2", *self.arguments]

    def remote_command(self) -> str:
        """What the device's shell is given; `exec` makes our shell the leader of the process group."""
        remote = "exec " + quoted(self.argv())
        if len(os.fsencode(remote)) > _MAX_COMMAND_BYTES:
            raise Sme2Error(
                f"A command of {len(remote)} characters is too long to send.", "Use shorter or fewer names."
            )
        return remote


def quoted(argv: Sequence[str]) -> str:
    """The words as a POSIX shell reads them back, whatever they contain."""
    if any("\0" in word for word in argv):
        raise Sme2Error("A command line cannot contain a NUL character.", "Choose another name.")
    return shlex.join(argv)
