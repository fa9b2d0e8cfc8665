"""When a test may be skipped because something it needs could not be had.

What a test needs is fetched: emulator, compiler, Android's daemon. It may be out of reach, as without a
network. A test is then skipped, but never in CI on Linux, and never where the place that it comes from
answers: something broke there, and the test fails with it.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from sme2_assets.errors import PackagesUnavailable, Sme2Error
from sme2_assets.toolchain.debian import PROGRAMS, fetch_packages

# Small, and in every suite of Debian and Ubuntu.
_ANY_PACKAGE = "hostname"


def skip_where_ci_would_fail(reason: str) -> NoReturn:
    """For what this machine lacks, where CI has it."""
    if required():
        pytest.fail(reason)
    pytest.skip(reason)


def skip_out_of_reach(error: Sme2Error) -> NoReturn:
    """For an error of fetching or building: skips where no package mirror answers, else raises the error."""
    if required() or not _about_packages(error) or mirror_answers():
        raise error
    pytest.skip(f"no package mirror answers: {error.what}")


def required() -> bool:
    return os.environ.get("CI") == "true" and platform.system() == "Linux"


def _about_packages(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, PackagesUnavailable):
        error = error.__cause__
    return error is not None


@functools.cache
def mirror_answers() -> bool:
    """Whether this machine's own packages can be fetched at this moment."""
    if any(shutil.which(program) is None for program in PROGRAMS):
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            fetch_packages([_ANY_PACKAGE], Path(folder) / "asked", log=print)
        except PackagesUnavailable:
            return False
    return True
