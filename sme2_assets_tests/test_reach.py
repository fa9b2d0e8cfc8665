"""Which failures of fetching and building may skip a test."""

from __future__ import annotations

import pytest

from sme2_assets.errors import BuildError, PackagesUnavailable
from sme2_assets_tests import reach


def build_error(cause: Exception | None) -> BuildError:
    error = BuildError("no compiler", "get one")
    error.__cause__ = cause
    return error


@pytest.fixture
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of a developer, without a network."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(reach, "mirror_answers", lambda: False)


@pytest.mark.usefixtures("no_mirror")
def test_what_no_mirror_gives_is_skipped():
    with pytest.raises(pytest.skip.Exception, match="no package mirror answers"):
        reach.skip_out_of_reach(build_error(PackagesUnavailable("no answer")))


@pytest.mark.usefixtures("no_mirror")
def test_a_build_that_broke_by_itself_fails():
    with pytest.raises(BuildError):
        reach.skip_out_of_reach(build_error(None))


@pytest.mark.usefixtures("no_mirror")
def test_what_a_mirror_that_answers_does_not_give_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reach, "mirror_answers", lambda: True)
    with pytest.raises(BuildError):
        reach.skip_out_of_reach(build_error(PackagesUnavailable("damaged")))


@pytest.mark.usefixtures("no_mirror")
def test_nothing_is_skipped_in_ci_on_linux(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(BuildError):
        reach.skip_out_of_reach(build_error(PackagesUnavailable("no answer")))
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        reach.skip_where_ci_would_fail("no Chromium")


def test_without_apt_no_mirror_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    reach.mirror_answers.cache_clear()
    assert not reach.mirror_answers()
    reach.mirror_answers.cache_clear()
