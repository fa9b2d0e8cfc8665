"""Power modes on a real adb transport, with Android's `settings` and `svc` simulated (android_userland)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.errors import ConnectionLost, Sme2Error
from sme2_assets.targets.android.power import MODES, applied, restore_from
from sme2_assets.targets.android.target import AndroidTarget, power_journal
from sme2_assets_tests.targets.android.android_userland import Userland

# Some set, some not: a setting that does not exist must not exist afterwards either.
OWNERS = {"low_power": "1", "stay_on_while_plugged_in": "3", "window_animation_scale": "0.5"}


@pytest.fixture
def phone(android_userland: Userland) -> Userland:
    android_userland.put(**OWNERS)
    return android_userland


@pytest.mark.parametrize("mode", ["boost", "app"])
def test_a_mode_is_set_verified_recorded_and_given_back(phone, tmp_path, mode):
    journal, lines = tmp_path / "journal.json", []
    with applied(phone.loopback.device, mode, journal, lines.append) as facts:
        assert phone.settings() == dict(MODES[mode].settings)
        assert facts["taken"] is True
        assert facts["woken"] is (True if mode == "boost" else None)
        recorded = {setting["name"]: setting for setting in facts["settings"]}
        assert recorded["low_power"] == {
            "name": "low_power",
            "before": "1",
            "wanted": "0",
            "after": "0",
            "taken": True,
        }
        assert recorded["animator_duration_scale"]["before"] is None
        assert journal.exists()
        json.dumps(facts, allow_nan=False)
    assert phone.settings() == OWNERS
    assert facts["restored"] is True
    assert not journal.exists()
    assert [line for line in lines if "did not take" in line] == []


def test_a_failure_inside_gives_everything_back(phone, tmp_path):
    def fail() -> None:
        with applied(phone.loopback.device, "boost", tmp_path / "journal.json", print):
            raise RuntimeError("the run died")

    with pytest.raises(RuntimeError, match="the run died"):
        fail()
    assert phone.settings() == OWNERS


def test_a_setting_that_does_not_take_is_told_and_recorded(phone, tmp_path):
    phone.refuse("low_power")
    lines: list[str] = []
    with applied(phone.loopback.device, "boost", tmp_path / "journal.json", lines.append) as facts:
        refused = next(setting for setting in facts["settings"] if setting["name"] == "low_power")
        assert (refused["after"], refused["taken"], facts["taken"]) == ("1", False, False)
    assert any("low_power did not take: asked for 0, the device says 1" in line for line in lines)
    assert phone.settings() == OWNERS


def test_what_somebody_else_changed_meanwhile_stays(phone, tmp_path):
    lines: list[str] = []
    with applied(phone.loopback.device, "app", tmp_path / "journal.json", lines.append):
        phone.put(window_animation_scale="10")
    assert phone.settings() == {**OWNERS, "window_animation_scale": "10"}
    assert any("window_animation_scale was changed by somebody else" in line for line in lines)


def test_a_session_that_is_killed_is_repaired_by_the_next_lease(phone, tmp_path):
    """A real process in the middle of a session dies by SIGKILL: nothing of it runs any more."""
    device = phone.loopback.device
    journal = power_journal(tmp_path, device.device_id)
    session = (
        "import sys, time; from pathlib import Path\n"
        "from sme2_assets.targets.android.adb import require_adb\n"
        "from sme2_assets.targets.android.device import Device\n"
        "from sme2_assets.targets.android.power import applied\n"
        "with applied(Device(require_adb(), sys.argv[1]), 'boost', Path(sys.argv[2]), lambda line: None):\n"
        "    print('inside', flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", session, device.serial, str(journal)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
    finally:
        process.kill()
        process.wait()
    assert phone.settings() == dict(MODES["boost"].settings)
    assert "boost" in journal.read_text()

    lines: list[str] = []
    with AndroidTarget(serial=device.serial, tools=tmp_path).leased(tmp_path, lines.append):
        assert phone.settings() == OWNERS
    assert not journal.exists()
    assert any("were restored" in line for line in lines)


def test_death_before_the_settings_were_read_back_is_repaired_too(phone, tmp_path):
    """The journal alone was written, and some settings changed: those go back, whatever they became."""
    journal = tmp_path / "journal.json"
    names = list(MODES["boost"].settings)
    settings = [{"name": name, "before": OWNERS.get(name), "wanted": "0"} for name in names]
    document = {"schema": 1, "device": phone.loopback.device.device_id, "mode": "boost", "settings": settings}
    journal.write_text(json.dumps(document))
    phone.put(stay_on_while_plugged_in="7", animator_duration_scale="0")
    assert restore_from(journal, phone.loopback.device) is True
    assert phone.settings() == OWNERS
    assert restore_from(journal, phone.loopback.device) is False


def test_a_device_that_goes_away_is_repaired_when_it_is_back(phone, tmp_path):
    journal, lines = tmp_path / "journal.json", []
    device = phone.loopback.device
    try:
        with applied(device, "boost", journal, lines.append) as facts:
            phone.loopback.kill()
        assert facts["restored"] is False
        assert any("not restored" in line for line in lines)
        assert journal.exists()
        with pytest.raises(ConnectionLost):
            restore_from(journal, device)
    finally:
        phone.loopback.start()
        phone.loopback.connect()
    assert phone.settings() == dict(MODES["boost"].settings)
    # The next session begins with what the owner had, not with what the first one set.
    with applied(device, "app", journal, lines.append) as facts:
        assert {setting["name"]: setting["before"] for setting in facts["settings"]}["low_power"] == "1"
    assert phone.settings() == OWNERS


def test_an_unknown_mode_and_a_device_without_settings_are_clear_errors(loopback_device, tmp_path):
    with (
        pytest.raises(Sme2Error, match="'turbo'") as caught,
        applied(loopback_device.device, "turbo", tmp_path / "journal.json", print),
    ):
        pass
    assert "app or boost" in str(caught.value)
    with (
        pytest.raises(Sme2Error, match="`settings`"),
        applied(loopback_device.device, "boost", tmp_path / "journal.json", print),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "settings": [{"x": 1}]}'])
def test_a_journal_that_cannot_be_read_is_never_ignored(phone, tmp_path, text):
    journal = tmp_path / "journal.json"
    journal.write_text(text)
    with pytest.raises(Sme2Error, match="cannot be read"):
        restore_from(journal, phone.loopback.device)
    assert journal.read_text() == text


def test_a_journal_of_another_device_is_refused(phone, tmp_path: Path):
    journal = tmp_path / "journal.json"
    journal.write_text(json.dumps({"schema": 1, "device": "android-0123", "mode": "app", "settings": []}))
    with pytest.raises(Sme2Error, match="android-0123"):
        restore_from(journal, phone.loopback.device)
