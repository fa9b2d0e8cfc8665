"""The driver of watched steps that doctor, smoke, validation and all checks share."""

from __future__ import annotations

import json

import pytest

from sme2_assets.diagnostics.steps import FAILED, NOT_REACHED, NOTE, PASSED, Checkup, detail_of
from sme2_assets.errors import Sme2Error
from sme2_assets.toolchain import Availability


def statuses(made: Checkup) -> dict[str, str]:
    return {step.name: step.status for step in made.steps}


def test_a_step_passes_unless_it_says_otherwise_and_an_error_is_its_cause_and_remedy():
    watched: list[str] = []
    made = Checkup("it", "thing", lambda step: watched.append(step.name))
    with made.step("good") as step:
        step.detail = "found"
    with made.step("noted") as step:
        step.note("worth knowing")
    with made.step("bad"):
        raise Sme2Error("It is broken.", "Mend it.")
    with made.step("absent", optional=True):
        raise Sme2Error("It is not there.")
    assert statuses(made) == {"good": PASSED, "noted": NOTE, "bad": FAILED, "absent": NOTE}
    assert watched == list(statuses(made))
    [failed] = made.failed
    assert (failed.problem, failed.remedy) == ("It is broken.", "Mend it.")
    assert not made.ok
    told = json.loads(json.dumps(made.as_json(), allow_nan=False))
    assert (told["what"], told["kind"], told["ok"], len(told["steps"])) == ("it", "thing", False, 4)


def test_after_a_failure_the_expected_steps_are_not_reached_and_told_so():
    watched: list[str] = []
    made = Checkup("it", "thing", lambda step: watched.append(f"{step.name} {step.status}"))
    made.expect("one", "two", "three")
    with made.until_a_failure():
        with made.step("one"):
            pass
        with made.step("two"):
            raise Sme2Error("no")
        raise AssertionError("a step after a failure was taken")
    assert statuses(made) == {"one": PASSED, "two": FAILED, "three": NOT_REACHED}
    assert watched == ["one passed", "two failed", "three not reached"]
    assert not made.ok


def test_a_defect_is_no_failed_step():
    made = Checkup("it", "thing")
    with pytest.raises(ZeroDivisionError), made.until_a_failure(), made.step("one"):
        1 / 0  # noqa: B018


def test_nothing_looked_at_is_not_ok():
    assert not Checkup("it", "thing").ok


def test_what_is_not_available_is_an_error_with_its_remedy():
    assert detail_of(Availability(True, "there")) == "there"
    with pytest.raises(Sme2Error, match="gone") as caught:
        detail_of(Availability(False, "gone", "Fetch it."))
    assert caught.value.remedy == "Fetch it."
