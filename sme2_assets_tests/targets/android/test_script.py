"""The shell programs that are sent to devices."""

from __future__ import annotations

import subprocess
from importlib import resources

import pytest

from sme2_assets.targets import remote
from sme2_assets.targets.remote.connection import shell_program

PROGRAMS = sorted(path.name.removesuffix(".sh") for path in (resources.files(remote) / "scripts").iterdir())


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_shell_program_is_one_and_has_no_line_ends_of_windows(name: str):
    text = shell_program(name)
    assert "\r" not in text
    subprocess.run(["sh", "-n", "-c", text], check=True)


def test_programs_are_joined_in_the_order_they_are_named():
    assert shell_program("lock", "clean") == shell_program("lock") + shell_program("clean")
