"""The machine as it is read, and the gate that waits for quiet; with real processes where there is /proc."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.targets.environment import quiet as quiet_module
from sme2_assets.targets.environment import snapshot as snapshot_module
from sme2_assets.targets.environment.mac import (
    parse_cpu_time,
    parse_mac_battery,
    parse_ps,
    parse_speed_limit,
    parse_thermal_pressure,
    read_ps,
)
from sme2_assets.targets.environment.processes import (
    Counters,
    HeavyProcess,
    ProcessTimes,
    Reading,
    cpu_usage,
    family,
    other_cores,
    parse_machine_stat,
    parse_process_stat,
    read_proc,
    read_quota_throttled,
)
from sme2_assets.targets.environment.quiet import (
    busy_flags,
    cap_flags,
    disturbances_between,
    heat_flags,
    wait_until_quiet,
)
from sme2_assets.targets.environment.sensors import (
    Battery,
    Sensors,
    read_battery,
    read_frequencies,
    read_frequency_cap,
    read_governor,
    read_temperature,
    read_thermal_events,
    read_throttling,
)
from sme2_assets.targets.environment.snapshot import HEAVY_CORES, Snapshot, take_snapshot
from sme2_assets.targets.host import mac_clusters, parse_sysctl_features
from sme2_assets.targets.reading import output_of, printable_name

needs_proc = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc here")

QUIET = Snapshot(
    at="2026-01-01T00:00:00.000+00:00",
    load_1m=0.1,
    other_cores=0.05,
    heavy_processes=[],
    cpu_frequency_khz=None,
    frequency_cap=None,
    governor=None,
    temperature_c=40.0,
    counters=Counters(clock_s=0.0),
)
BUSY = replace(QUIET, other_cores=1.3, heavy_processes=[HeavyProcess("cc1plus", 1.3)])
HOT = replace(QUIET, temperature_c=97.0)
CAPPED = replace(QUIET, frequency_cap=0.6)

# Takes the given name and burns CPU; ends by itself should the test die first.
_BURN = """
import pathlib, time
pathlib.Path("/proc/self/comm").write_bytes({name!r})
end = time.monotonic() + 120
while time.monotonic() < end:
    pass
"""
# The same as a grandchild whose parent has ended: no relative of ours any more.
_ORPHAN = """
import os
pid = os.fork()
if pid:
    print(pid, flush=True)
    os._exit(0)
os.setsid()
os.closerange(0, 3)
"""


@pytest.fixture
def orphan() -> Iterator[Callable[[bytes], int]]:
    """Starts busy processes that do not belong to our process tree."""
    started = []

    def start(name: bytes) -> int:
        code = _ORPHAN + _BURN.format(name=name)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
        started.append(int(done.stdout))
        return started[-1]

    yield start
    for pid in started:
        _end(pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _snapshot_with(name: str) -> Snapshot:
    """A snapshot that has the process in it; a crowded machine may need many attempts."""
    for _ in range(400):
        snapshot = take_snapshot(0.3)
        if name in [process.name for process in snapshot.heavy_processes]:
            return snapshot
    raise AssertionError(f"{name} was never seen: {snapshot}")


def _strict(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def test_a_snapshot_is_strict_json_and_comes_back_equal():
    snapshot = take_snapshot()
    assert json.loads(_strict(snapshot.as_json())) == snapshot.as_json()
    assert json.loads(_strict(asdict(snapshot))) == snapshot.as_json()


@needs_proc
def test_our_own_children_and_grandchildren_are_not_heavy_processes():
    # Nobody else has them, also where these tests run twice at once.
    son, grandson = (f"sme2-{letter}-{os.getpid()}" for letter in "sg")
    grandchild = [sys.executable, "-c", _BURN.format(name=grandson.encode())]
    parent = f"import subprocess; subprocess.run({grandchild!r})"
    child = subprocess.Popen([sys.executable, "-c", _BURN.format(name=son.encode())])
    other = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    try:
        before, working = _reading_with({son, grandson}), set[str]()
        while not {son, grandson} <= working:
            snapshot = take_snapshot(0.3)
            after = _reading_with({son, grandson})
            # Were they strangers they would be seen: that is what the snapshot must leave out.
            elapsed_s = after.counters.clock_s - before.counters.clock_s
            usage = cpu_usage(before.processes, after.processes, set(), elapsed_s)
            working = {name for name, cores in usage if cores}
            assert not {son, grandson} & {process.name for process in snapshot.heavy_processes}
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        child.kill()
        child.wait()
        other.wait()


def _reading_with(names: set[str]) -> Reading:
    for _ in range(1200):
        reading = read_proc(Path("/proc"), Path("/sys"))
        if names <= {process.name for process in reading.processes.values()}:
            return reading
        time.sleep(0.1)
    raise AssertionError(f"{names} were never seen")


@needs_proc
def test_a_hostile_process_name_breaks_neither_json_nor_the_terminal(orphan):
    # Fifteen bytes, the longest that the kernel keeps.
    own = f"{os.getpid() % 1000:03}"
    pid = orphan(b'a)"\n\x1b[1m\xff ({' + own.encode())
    name = 'a)"\ufffd\ufffd[1m\ufffd ({' + own
    seen = _reading_with({name})
    assert (seen.processes[pid].name, pid in seen.own) == (name, False)
    snapshot = replace(QUIET, other_cores=1.0, heavy_processes=[HeavyProcess(name, 1.0)])
    assert json.loads(_strict(snapshot.as_json()))["heavy_processes"] == [[name, 1.0]]
    assert busy_flags(snapshot, 0.0)[0].isprintable()


@needs_proc
def test_cpu_time_of_children_that_have_ended_is_our_own():
    before = take_snapshot(0)
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    after = take_snapshot(0)
    assert before.counters.own_s is not None
    assert after.counters.own_s is not None
    assert after.counters.own_s - before.counters.own_s > 0.45


@needs_proc
def test_a_stranger_shows_between_two_snapshots_that_both_missed_it(orphan):
    before = take_snapshot()
    pid = orphan(b"sme2-stranger")
    stat = Path(f"/proc/{pid}/stat")
    while (process := parse_process_stat(stat.read_bytes(), 100)) is not None and process.cpu_s < 0.5:
        time.sleep(0.05)
    _end(pid)
    after = take_snapshot()
    flags = disturbances_between(before, after, limit_load=0.01)
    assert flags[0].startswith("busy: other processes used")
    used_s = (other_cores(before.counters, after.counters) or 0) * (
        after.counters.clock_s - before.counters.clock_s
    )
    assert used_s > 0.4


@needs_proc
def test_the_gate_opens_for_real_once_the_stranger_has_gone(orphan):
    name = f"sme2-x-{os.getpid()}"
    pid = orphan(name.encode())
    assert (_snapshot_with(name).other_cores or 0) > HEAVY_CORES / 2
    _, flags = wait_until_quiet(limit_load=0.1, patience_s=30, log=print, sleep=lambda _: _end(pid))
    assert name not in " ".join(flags)


def _gate(
    snapshots: list[Snapshot], patience_s: float = 60.0, cool_patience_s: float | None = None
) -> tuple[list[str], list[str], float]:
    """Flags, log and seconds slept for a machine that shows these snapshots, the last one for ever."""
    lines: list[str] = []
    pauses: list[float] = []
    left = list(snapshots)
    # Time passes by sleeping alone.
    with mock.patch.object(quiet_module, "time", mock.Mock(monotonic=lambda: sum(pauses))):
        _, flags = wait_until_quiet(
            limit_load=0.3,
            patience_s=patience_s,
            log=lines.append,
            take=lambda: left.pop(0) if len(left) > 1 else left[0],
            sleep=pauses.append,
            cool_patience_s=cool_patience_s,
        )
    return flags, lines, sum(pauses)


def test_a_quiet_machine_is_measured_at_once_and_without_a_word():
    assert _gate([QUIET]) == ([], [], 0)


def test_the_gate_waits_for_a_busy_machine_and_wants_to_see_it_quiet_twice():
    flags, lines, slept_s = _gate([BUSY, QUIET, BUSY, QUIET, QUIET, BUSY])
    assert flags == []
    assert slept_s == 4
    assert "cc1plus used 1.3 cores" in lines[0]


@pytest.mark.parametrize("snapshot", [BUSY, HOT])
@pytest.mark.parametrize("patience_s", [0.0, 0.5, 7.0])
def test_patience_ends_and_the_flag_stays(snapshot, patience_s):
    flags, _, slept_s = _gate([snapshot], patience_s)
    assert flags == (["busy: cc1plus used 1.3 cores"] if snapshot is BUSY else ["hot: 97 °C"])
    assert slept_s <= patience_s
    assert (slept_s > 0) == (patience_s > 0)


def test_heat_has_a_patience_of_its_own_and_is_told_apart_from_noise():
    hot = [replace(BUSY, temperature_c=97.0), HOT, HOT, HOT]
    flags, lines, slept_s = _gate([*hot, QUIET, QUIET], patience_s=3, cool_patience_s=600)
    assert flags == []
    assert slept_s > 3
    assert lines[0].startswith("waiting up to 600 s for the machine to cool down: busy: ")
    assert "hot: 97 °C" in lines[0]
    assert "quiet after" in lines[-1]
    # Without a patience of its own, heat is waited for as others are.
    assert _gate([HOT], 3)[2] <= 3


def test_a_hot_battery_is_waited_for_and_a_low_one_is_flagged():
    hot = replace(QUIET, battery=Battery(80, 43.0, "usb"))
    flags, lines, slept_s = _gate([hot], 12)
    assert flags == ["hot: the battery is at 43.0 °C, and 40 °C or more slows a device"]
    assert slept_s == 12
    assert "cool down" in lines[0]
    low = replace(QUIET, battery=Battery(9, 30.0, "no"))
    assert _gate([low]) == (["battery: 9 % is left, and systems then save power"], [], 0)
    assert _gate([replace(QUIET, battery=Battery(None, None, None))]) == ([], [], 0)


def test_a_capped_frequency_is_flagged_but_not_waited_for():
    assert _gate([CAPPED]) == (["capped: a CPU may reach only 60% of its maximum frequency"], [], 0)


def test_busy_time_that_no_process_explains_is_flagged_too():
    assert busy_flags(replace(QUIET, other_cores=0.8), 0.3) == [
        "busy: small, short-lived or hidden processes used 0.8 cores"
    ]
    both = busy_flags(replace(BUSY, other_cores=2.0), 0.3)
    assert both == [
        "busy: small, short-lived or hidden processes used 0.7 cores",
        "busy: cc1plus used 1.3 cores",
    ]


def test_processes_of_one_name_are_added_up_in_flags():
    crowd = replace(QUIET, other_cores=2.0, heavy_processes=[HeavyProcess("python", 1.0)] * 2)
    assert busy_flags(crowd, 0.3) == ["busy: python used 2.0 cores"]


def test_an_allowed_process_is_no_flag():
    assert busy_flags(BUSY, 1.3) == []
    assert heat_flags(QUIET) == cap_flags(QUIET) == []


def test_what_the_counters_show_between_snapshots():
    before = replace(QUIET, counters=Counters(100.0, 50.0, 10.0, 1.0, 0.0, 7))
    after = replace(QUIET, counters=Counters(110.0, 70.0, 18.0, 3.0, 0.25, 9))
    assert disturbances_between(before, after, limit_load=0.3) == [
        "busy: other processes used 1.2 cores over 10 s",
        "stolen: the hypervisor gave 0.20 cores to others",
        "quota: the container's CPU limit stopped its threads for 0.25 s",
        "hot: the CPU slowed itself 2 times",
    ]
    assert disturbances_between(before, before, limit_load=0.3) == []
    assert disturbances_between(after, before, limit_load=0.3) == []


def test_counters_that_are_missing_or_were_reset_say_nothing():
    assert other_cores(Counters(1.0), Counters(2.0)) is None
    assert other_cores(Counters(1.0, 5.0, 5.0), Counters(2.0, 5.0, 1.0)) == 0
    later = replace(QUIET, counters=Counters(10.0))
    assert disturbances_between(QUIET, later, limit_load=0.3) == []


def _times(pid: int, parent: int, cpu_s: float = 0.0, started: int = 0) -> ProcessTimes:
    return ProcessTimes(pid, parent, f"p{pid}", started, cpu_s)


def test_a_family_is_the_root_and_its_descendants_not_its_ancestors():
    tree = [_times(1, 0), _times(2, 1), _times(3, 2), _times(4, 3), _times(5, 1)]
    assert family(tree, 2) == {2, 3, 4}
    assert family([], 2) == {2}
    assert family([_times(0, 0), _times(7, 8), _times(8, 7)], 7) == {7, 8}


def test_a_reused_process_number_does_not_inherit_cpu_time():
    before = {9: _times(9, 1, cpu_s=5.0, started=1), 8: _times(8, 1, cpu_s=1.0)}
    after = {9: _times(9, 1, cpu_s=0.5, started=2), 8: _times(8, 1, cpu_s=1.1), 7: _times(7, 1, cpu_s=9.0)}
    usage = cpu_usage(before, after, own={7}, elapsed_s=1.0)
    assert [name for name, _ in usage] == ["p9", "p8"]
    assert [cores for _, cores in usage] == pytest.approx([0.5, 0.1])
    assert cpu_usage(before, after, set(), 0.0) == []


def _made_machine(root: Path, idle_s: float, cpu_s: dict[str, float], reaped_s: float = 0) -> Reading:
    """A /proc of this process, its child and grandchild, and two strangers, as the kernel writes it."""
    us, busy_s = os.getpid(), sum(cpu_s.values()) + reaped_s
    parents = {"us": (us, 1), "child": (us + 1, us), "grandchild": (us + 2, us + 1)}
    parents |= {"cc1plus": (us + 3, 1), "init": (1, 0)}
    ticks = os.sysconf("SC_CLK_TCK")
    files = {"stat": f"cpu  {busy_s * ticks:.0f} 0 0 {idle_s * ticks:.0f} 0 0 0 0 0 0"}
    for name, (pid, parent) in parents.items():
        used, reaped = (round(ticks * seconds) for seconds in (cpu_s[name], reaped_s if name == "us" else 0))
        files[f"{pid}/stat"] = (
            f"{pid} ({name}) R {parent} 1 1 0 -1 0 0 0 0 0 {used} 0 {reaped} 0 20 0 1 0 77 {'0 ' * 30}"
        )
    return read_proc(_tree(root, files), root)


def test_between_two_readings_only_strangers_are_heavy_and_our_own_work_is_left_out(tmp_path):
    idle = dict.fromkeys(("us", "child", "grandchild", "cc1plus", "init"), 5.0)
    worked = {"us": 6.0, "child": 5.8, "grandchild": 6.9, "cc1plus": 5.6, "init": 5.02}
    before = _made_machine(tmp_path, 0, idle)
    after = _made_machine(tmp_path, 9, worked, reaped_s=0.5)
    # Two seconds have passed.
    before, after = (
        replace(reading, counters=replace(reading.counters, clock_s=clock_s))
        for reading, clock_s in ((before, 100.0), (after, 102.0))
    )
    assert before.own == {os.getpid() + more for more in range(3)}
    snapshot = snapshot_module.snapshot_of(before, after, Sensors(), 0.0)
    assert snapshot.heavy_processes == [HeavyProcess("cc1plus", 0.3)]
    assert snapshot.other_cores == 0.31
    assert after.counters.own_s == pytest.approx(19.2), "with the child that has ended"
    earlier = replace(QUIET, counters=before.counters)
    assert disturbances_between(earlier, snapshot, limit_load=0.3) == [
        "busy: other processes used 0.3 cores over 2 s"
    ]


@needs_proc
def test_our_own_stat_line_is_read_right():
    process = parse_process_stat(Path("/proc/self/stat").read_bytes(), os.sysconf("SC_CLK_TCK"))
    assert process is not None
    assert (process.pid, process.parent) == (os.getpid(), os.getppid())
    # Both count the same ticks, the second reading somewhat later.
    times = os.times()
    assert process.cpu_s == pytest.approx(times.user + times.system, abs=1.0)
    assert process.reaped_s == pytest.approx(times.children_user + times.children_system, abs=0.1)


@given(st.binary(max_size=400))
def test_no_bytes_make_a_parser_raise(raw: bytes):
    text = raw.decode("utf-8", "replace")
    assert parse_process_stat(raw, 100) is None or raw.startswith(tuple(b"0123456789 \t\n\r\x0b\x0c+-"))
    parse_process_stat(b"12 (" + raw + b") R 1 " + b"3 " * 30, 100)
    parse_machine_stat(raw, 100)
    parse_machine_stat(b"cpu " + raw, 100)
    parse_ps(text)
    parse_ps(f"1 1 0:00.01 {text}")
    parse_cpu_time(text)
    parse_speed_limit(text)
    parse_thermal_pressure(text)


@given(st.one_of(st.binary(max_size=100), st.text(st.characters(), max_size=100)))
def test_every_process_name_is_one_printable_line_of_valid_unicode(raw: bytes | str):
    name = printable_name(raw)
    assert name
    assert name.isprintable()
    assert json.loads(_strict(name)) == name
    name.encode("utf-8")


def test_the_busy_time_of_a_machine_leaves_out_idle_iowait_and_stolen():
    raw = b"cpu  100 10 50 9000 800 5 5 30 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert parse_machine_stat(raw, 100) == (1.7, 0.3)
    assert parse_machine_stat(b"cpu 1 2 3\n", 100) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00.05", 0.05),
        ("123:45.67", 7425.67),
        ("01:02:03", 3723),
        ("2-01:00:00", 176400),
        ("x", None),
        ("", None),
    ],
)
def test_cpu_times_of_ps(text, seconds):
    assert parse_cpu_time(text) == seconds


def test_ps_of_macos_is_parsed():
    text = (
        "    1     0   3:12.04 /sbin/launchd\n"
        "  501     1   0:09.10 /Applications/Some App.app/Contents/MacOS/Some App\n"
        "broken line\n"
    )
    assert parse_ps(text) == [
        ProcessTimes(1, 0, "launchd", 0, 192.04),
        ProcessTimes(501, 1, "Some App", 0, 9.1),
    ]


def test_the_way_through_ps_gives_a_snapshot_too(monkeypatch, tmp_path):
    monkeypatch.setattr(snapshot_module, "_PROC", tmp_path)
    snapshot = take_snapshot()
    _strict(snapshot.as_json())
    assert snapshot.counters.busy_s is None
    if output_of(["ps", "-A"]):
        assert os.getpid() in read_ps().processes
        assert snapshot.other_cores is not None


def test_without_any_source_a_snapshot_is_still_given(monkeypatch, tmp_path):
    monkeypatch.setattr(snapshot_module, "_PROC", tmp_path)
    monkeypatch.setattr(snapshot_module, "_SYS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    snapshot = take_snapshot()
    assert (snapshot.other_cores, snapshot.heavy_processes, snapshot.temperature_c) == (None, [], None)
    assert wait_until_quiet(limit_load=0.1, patience_s=1, log=print, take=lambda: snapshot) == (snapshot, [])


def test_limits_that_macos_reports():
    text = "Note: No thermal warning level has been recorded\n\tCPU_Speed_Limit \t= 35\n"
    assert parse_speed_limit(text) == 0.35
    assert parse_speed_limit("Note: No CPU power status has been recorded\n") is None
    assert parse_thermal_pressure("com.apple.system.thermalpressurelevel 0\n") == []
    assert len(parse_thermal_pressure("com.apple.system.thermalpressurelevel 2\n")) == 1


def test_what_a_mac_draws_from():
    text = (
        "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=123)\t78%; discharging; 5:05 remaining\n"
    )
    assert parse_mac_battery(text) == Battery(78, None, "no")
    assert parse_mac_battery("Now drawing from 'AC Power'\n") == Battery(None, None, "ac")
    assert parse_mac_battery("") is None


def test_performance_levels_and_features_of_a_mac():
    answers = {
        "hw.nperflevels": "2",
        "hw.perflevel0.name": "Performance",
        "hw.perflevel0.logicalcpu": "4",
        "hw.perflevel1.name": "Efficiency",
        "hw.perflevel1.logicalcpu": "6",
    }
    levels = mac_clusters(lambda name: answers.get(name, ""))
    assert [(level.name, level.count, level.cpus) for level in levels] == [
        ("performance", 4, ()),
        ("efficiency", 6, ()),
    ]
    assert mac_clusters(lambda name: "") == ()
    text = "hw.optional.arm.FEAT_SME: 1\nhw.optional.arm.FEAT_SME2: 1\nhw.optional.arm.FEAT_SME2p1: 0\n"
    assert parse_sysctl_features(text) == ("FEAT_SME", "FEAT_SME2")


def _tree(root: Path, files: dict[str, str]) -> Path:
    """A /sys as the kernel documents it; virtual machines have none of these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_frequencies_caps_and_governors_are_read_in_the_order_of_cpus(tmp_path):
    cpu = "devices/system/cpu/cpu{}/cpufreq/"
    files = {}
    for index, (now, allowed, most) in {
        0: (600, 1800, 1800),
        2: (700, 1400, 2800),
        10: (800, 2800, 2800),
    }.items():
        files[cpu.format(index) + "scaling_cur_freq"] = str(now)
        files[cpu.format(index) + "scaling_max_freq"] = str(allowed)
        files[cpu.format(index) + "cpuinfo_max_freq"] = str(most)
        files[cpu.format(index) + "scaling_governor"] = "schedutil" if index else "performance"
    root = _tree(tmp_path, files)
    assert read_frequencies(root) == [600, 700, 800]
    assert read_frequency_cap(root) == 0.5
    assert read_governor(root) == "performance,schedutil"


def test_the_battery_of_a_laptop_is_not_that_of_its_mouse(tmp_path):
    supply = "class/power_supply/"
    files = {
        supply + "AC/type": "Mains",
        supply + "AC/online": "1",
        supply + "BAT0/type": "Battery",
        supply + "BAT0/capacity": "61",
        supply + "a_mouse/type": "Battery",
        supply + "a_mouse/scope": "Device",
        supply + "a_mouse/capacity": "5",
    }
    assert read_battery(_tree(tmp_path, files)) == Battery(61, None, "ac")
    assert read_battery(tmp_path / "nowhere") is None


def test_the_hottest_plausible_sensor_counts(tmp_path):
    root = _tree(
        tmp_path,
        {
            "class/thermal/thermal_zone0/temp": "45500",
            "class/thermal/thermal_zone1/temp": "-274000",
            "class/thermal/thermal_zone2/temp": "no data",
            "class/hwmon/hwmon0/name": "k10temp",
            "class/hwmon/hwmon0/temp1_input": "61250",
            "class/hwmon/hwmon1/name": "drivetemp",
            "class/hwmon/hwmon1/temp1_input": "80000",
        },
    )
    assert read_temperature(root) == 61.2


def test_active_cooling_and_a_reached_limit_are_heat(tmp_path):
    root = _tree(
        tmp_path,
        {
            "class/thermal/cooling_device0/type": "cpufreq-cpu0",
            "class/thermal/cooling_device0/cur_state": "2",
            "class/thermal/cooling_device1/type": "Fan",
            "class/thermal/cooling_device1/cur_state": "3",
            "class/thermal/thermal_zone0/type": "cpu-thermal",
            "class/thermal/thermal_zone0/temp": "86000",
            "class/thermal/thermal_zone0/trip_point_0_type": "passive",
            "class/thermal/thermal_zone0/trip_point_0_temp": "85000",
            "class/thermal/thermal_zone0/trip_point_1_type": "critical",
            "class/thermal/thermal_zone0/trip_point_1_temp": "100000",
            "class/thermal/thermal_zone1/temp": "50000",
            "class/thermal/thermal_zone1/trip_point_0_type": "passive",
            "class/thermal/thermal_zone1/trip_point_0_temp": "0",
        },
    )
    hints = read_throttling(root)
    assert hints == [
        "cooling device cpufreq-cpu0 slows the CPU",
        "cpu-thermal is at 86 °C, its limit is 85 °C",
    ]
    assert heat_flags(replace(QUIET, throttled=hints)) == [f"hot: {hint}" for hint in hints]


def test_throttle_events_are_added_up_over_cpus(tmp_path):
    counts = "devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
    assert read_thermal_events(_tree(tmp_path, {counts.format(0): "3", counts.format(1): "4"})) == 7


@pytest.mark.parametrize(
    ("cgroup", "files", "seconds"),
    [
        (
            "0::/a/b",
            {"a/cpu.stat": "usage_usec 9\nthrottled_usec 500000", "a/b/cpu.stat": "throttled_usec 1"},
            0.500001,
        ),
        (
            "4:memory:/x\n1:cpu,cpuacct:/x",
            {"cpu,cpuacct/x/cpu.stat": "nr_periods 1\nthrottled_time 2000000000"},
            2.0,
        ),
        ("0::/../../elsewhere", {"cpu.stat": "usage_usec 9"}, None),
        ("", {}, None),
    ],
)
def test_time_stopped_by_a_quota_is_found_in_either_version_of_control_groups(
    tmp_path, cgroup, files, seconds
):
    proc = _tree(tmp_path / "proc", {"self/cgroup": cgroup})
    sys_root = _tree(tmp_path / "sys", {f"fs/cgroup/{name}": text for name, text in files.items()})
    assert read_quota_throttled(proc, sys_root) == seconds


def test_an_empty_sys_gives_none_everywhere(tmp_path):
    readers = (read_frequencies, read_frequency_cap, read_governor, read_temperature, read_thermal_events)
    assert [read(tmp_path) for read in readers] == [None] * len(readers)
    assert read_throttling(tmp_path) == []
