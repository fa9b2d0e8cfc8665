"""Packages of the distribution, fetched by the real apt from this machine's own mirror."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sme2_assets.errors import PackagesUnavailable
from sme2_assets.toolchain.debian import PROGRAMS, fetch_packages


@pytest.fixture(autouse=True)
def apt() -> None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here")


def _silent(line: str) -> None:
    """A log nobody reads."""


def test_a_package_comes_with_all_it_depends_on_and_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    destination = tmp_path / "unpacked"
    packages = fetch_packages(["zlib1g"], destination, with_dependencies=True, log=lines.append)
    assert packages[0].name == "zlib1g"
    assert {"zlib1g", "libc6"} <= {package.name for package in packages}
    assert all(len(package.sha256) == 64 and package.version and package.suite for package in packages)
    assert list(destination.rglob("libz.so.1"))
    assert list(destination.rglob("libc.so.6"))
    assert {path.name for path in tmp_path.iterdir()} == {"unpacked", ".unpacked.lock"}

    monkeypatch.setenv("PATH", os.devnull)
    lines.clear()
    assert fetch_packages(["zlib1g"], destination, with_dependencies=True, log=lines.append) == packages
    assert lines == []
    with pytest.raises(PackagesUnavailable, match="apt-get"):
        fetch_packages(["another"], destination, log=_silent)


@pytest.mark.parametrize(
    ("names", "only", "complaint"),
    [
        (["zlib1g", "no-such-package"], [], "has no no-such-package"),
        pytest.param(
            *(["zlib1g"], ["usr/bin/no-such-program"], "has no usr/bin/no-such-program"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_is_not_there_is_named_and_nothing_is_left(
    names: list[str], only: list[str], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(PackagesUnavailable, match=complaint):
        fetch_packages(names, tmp_path / "unpacked", only=only, log=_silent)
    assert [path.name for path in tmp_path.iterdir()] == [".unpacked.lock"]
