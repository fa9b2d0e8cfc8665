"""What a device tells: a real one on loopback, without and with a simulated Android (android_userland)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import Sme2Error
from sme2_assets.runner.bundle import host_is_target
from sme2_assets.targets.environment.quiet import heat_flags
from sme2_assets.targets.environment.sensors import Battery, read_battery
from sme2_assets.targets.host import host_facts
from sme2_assets.targets.remote.facts import (
    _mirrored,
    device_cpus,
    device_facts,
    device_snapshot,
    parse_battery,
    parse_thermal_service,
)
from sme2_assets_tests.targets import foreign_cpu
from sme2_assets_tests.targets.android.adb_loopback import LoopbackDevice
from sme2_assets_tests.targets.android.android_userland import BATTERY, THERMAL


def test_a_device_that_is_this_machine_has_its_facts_and_none_of_android(loopback_device):
    facts, host = device_facts(loopback_device.device), host_facts()
    assert (facts.kernel, facts.cores) == (host.kernel, host.cores)
    assert facts.memory_bytes == pytest.approx(host.memory_bytes, rel=0.01)
    if host_is_target():
        assert (facts.arch, facts.cpu) == (host.arch, host.cpu)
        assert (facts.clusters, facts.features) == (host.clusters, host.features)
    else:
        # The CPU is the one that the device says it has.
        assert (facts.arch, facts.cpu) == ("aarch64", "Neoverse-N1")
        assert set(facts.features) == set(foreign_cpu.FEATURES.split())
    assert (facts.model, facts.soc, facts.build, facts.battery) == (None, None, None, None)
    assert loopback_device.serial not in json.dumps(asdict(facts))


def test_android_tells_what_it_is_and_its_serial_number_stays_private(android_userland):
    facts = device_facts(android_userland.loopback.device)
    assert (facts.os, facts.model, facts.soc) == ("Android 16", "Acme Phone 9", "Chips C9000")
    assert facts.build == "acme/p9/p9:16/AB1.123/7:user/release-keys"
    assert facts.battery == {"level_percent": 84, "temperature_c": 31.2, "plugged": "usb"}
    text = json.dumps(asdict(facts))
    assert "SECRET0123" not in text
    assert json.loads(text)["serial_sha256"] == facts.serial_sha256
    # Read from the device itself, it does not depend on how the device is connected.
    (android_userland.state / "properties" / "ro.serialno").write_text("OTHER\n")
    assert device_facts(android_userland.loopback.device).serial_sha256 != facts.serial_sha256


def test_hostile_properties_are_one_printable_line(android_userland):
    (android_userland.state / "properties" / "ro.product.model").write_text(
        "a\x1b[2J'\"$(reboot)\nsme2-0 end\n"
    )
    facts = device_facts(android_userland.loopback.device)
    assert facts.model is not None
    assert facts.model.isprintable()
    assert "$(reboot)" in facts.model


def test_a_snapshot_of_a_device_has_its_load_and_its_heat(android_userland):
    device = android_userland.loopback.device
    snapshot = device_snapshot(device, 0.1)
    assert snapshot.temperature_c == 48.25
    assert snapshot.battery == Battery(84, 31.2, "usb")
    assert heat_flags(snapshot) == []
    assert snapshot.load_1m is not None
    assert snapshot.other_cores is not None
    # Ticks, taken for seconds, would be far above.
    assert snapshot.other_cores < 20 * (os.cpu_count() or 1)
    json.dumps(snapshot.as_json(), allow_nan=False)

    android_userland.dump("thermalservice", THERMAL.replace("Status: 0", "Status: 2"))
    android_userland.dump("battery", BATTERY.replace("312", "425"))
    assert heat_flags(device_snapshot(device, 0)) == [
        "hot: Android reports thermal status 2 (moderate)",
        "hot: the battery is at 42.5 °C, and 40 °C or more slows a device",
    ]


def test_what_adb_runs_on_a_device_is_our_own_work(loopback_device):
    """The counters of two snapshots leave out a command that ran and ended between them."""
    device = loopback_device.device
    before = device_snapshot(device, 0)
    # Until it has worked for a tenth of a second, however fast this machine is.
    turn = "turns=0; while [ $turns -lt 2000 ]; do turns=$((turns + 1)); done"
    device.script(f'until set -- $(cat /proc/$$/stat) && [ "${{14}}" -ge 10 ]; do {turn}; done')
    after = device_snapshot(device, 0)
    assert before.counters.own_s is not None
    assert after.counters.own_s is not None
    assert after.counters.own_s - before.counters.own_s > 0.05


def test_a_device_without_anything_of_android_gives_a_snapshot_too(loopback_device):
    snapshot = device_snapshot(loopback_device.device, 0)
    assert (snapshot.battery, snapshot.counters.quota_throttled_s) == (None, None)
    assert snapshot.counters.busy_s is not None


@pytest.fixture
def two_kinds(loopback_device: LoopbackDevice) -> Iterator[LoopbackDevice]:
    """The device with a /sys of ours in its mount namespace: virtual machines have no frequencies."""
    if not os.sched_getaffinity(0) >= {0, 1}:
        pytest.skip("CPUs 0 and 1 are not both allowed here")
    cpu, most = "cpu/cpu{}/", {0: 2_000_000, 1: 3_000_000, 7: 3_500_000}
    files = {"cpu/online": "0-1"}
    for number, khz in most.items():
        files[cpu.format(number) + "cpu_capacity"] = str(khz // 4000)
        files[cpu.format(number) + "cpufreq/cpuinfo_max_freq"] = str(khz)
        files[cpu.format(number) + "cpufreq/scaling_max_freq"] = str(khz // 2 if number == 1 else khz)
        files[cpu.format(number) + "cpufreq/scaling_cur_freq"] = "600000"
        files[cpu.format(number) + "cpufreq/scaling_governor"] = "sched_pixel"
    files |= {
        "thermal/thermal_zone0/type": "cpu-0-0",
        "thermal/thermal_zone0/temp": "71500",
        "thermal/thermal_zone0/trip_point_0_type": "passive",
        "thermal/thermal_zone0/trip_point_0_temp": "70000",
        "thermal/cooling_device3/type": "cpufreq-cpu1",
        "thermal/cooling_device3/cur_state": "2",
    }
    made = loopback_device.folder / "made_sys"
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text + "\n")
    mount = 'mount --bind "$1/cpu" /sys/devices/system/cpu && mount --bind "$1/thermal" /sys/class/thermal'
    loopback_device.device.script(mount, str(made))
    yield loopback_device
    loopback_device.device.script("umount /sys/devices/system/cpu /sys/class/thermal")


def test_clusters_caps_and_throttling_of_a_device_come_by_one_round_trip(two_kinds):
    device = two_kinds.device
    clusters = device_facts(device).clusters
    assert [(cluster.name, cluster.cpus, cluster.max_khz) for cluster in clusters] == [
        ("prime", (7,), 3_500_000),
        ("performance", (1,), 3_000_000),
        ("efficiency", (0,), 2_000_000),
    ]
    snapshot = device_snapshot(device, 0)
    assert snapshot.cpu_frequency_khz == [600_000] * 3
    assert (snapshot.frequency_cap, snapshot.governor, snapshot.temperature_c) == (0.5, "sched_pixel", 71.5)
    assert heat_flags(snapshot) == [
        "hot: cooling device cpufreq-cpu1 slows the CPU",
        "hot: cpu-0-0 is at 72 °C, its limit is 70 °C",
    ]
    assert device_cpus(device, "performance,efficiency") == (0, 1)
    with pytest.raises(Sme2Error, match=r"All CPUs of 'prime' \(7\) are offline"):
        device_cpus(device, "prime")


def test_cpus_are_chosen_among_those_of_the_device(loopback_device):
    device = loopback_device.device
    assert device_cpus(device, "all") == tuple(sorted(os.sched_getaffinity(0)))
    with pytest.raises(Sme2Error, match="CPU 999 of the choice '999' is not online"):
        device_cpus(device, "999")


def test_files_of_a_device_are_mirrored_and_nothing_outside():
    listing = "\n".join(
        [
            "/sys/class/power_supply/battery/type:Battery",
            "/sys/class/power_supply/battery/capacity:55",
            "/sys/class/power_supply/battery/temp:299",
            "/sys/class/power_supply/ucsi-source-psy-USBC000:001/type:USB",
            "/sys/class/power_supply/ucsi-source-psy-USBC000:001/online:1",
            "/sys/../../../../tmp/escaped/type:bad",
            "/etc/passwd:bad",
            "grep: something failed",
        ]
    )
    with _mirrored(listing) as root:
        assert read_battery(root / "sys") == Battery(55, 29.9, "usb")
        assert len([file for file in root.rglob("*") if file.is_file()]) == 5
    assert not root.exists()


def test_a_battery_as_android_prints_it():
    assert parse_battery(BATTERY) == Battery(84, 31.2, "usb")
    assert parse_battery(BATTERY.replace("USB powered: true", "USB powered: false")) == Battery(
        84, 31.2, "no"
    )
    assert parse_battery("level: 5\nscale: 10\n") == Battery(50, None, None)
    assert parse_battery("Can't find service: battery\n") is None


def test_temperatures_of_an_earlier_event_and_thresholds_are_no_readings():
    assert parse_thermal_service(THERMAL) == (0, 48.25)
    assert parse_thermal_service(THERMAL.replace("Current temperatures", "Other temperatures")) == (0, None)
    assert parse_thermal_service("Can't find service: thermalservice\n") == (None, None)


@given(st.text(max_size=300))
def test_no_text_makes_a_parser_of_devices_raise(text: str):
    parse_battery(text)
    parse_battery(f"  level: {text}\n  temperature: {text}")
    parse_thermal_service(text)
    parse_thermal_service(
        f"Thermal Status: {text}\nCurrent temperatures from HAL:\n\tTemperature{{mValue={text}"
    )
