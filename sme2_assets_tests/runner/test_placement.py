"""The runner stays on the CPUs it was given, and tells how fast they were."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sme2_assets.evidence.result import RunnerResult

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CPUs can be chosen on Linux alone")


def allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@linux
def test_all_threads_stay_on_the_cpus_that_were_chosen(runner, programs):
    """Seen from outside while it runs, and told by its result."""
    program, cpu = programs("two_inputs"), allowed()[-1]
    flags = runner.flags(program.pte, program.inputs, threads=2, timed_ms=600_000, iterations_cap=5_000_000)
    process = subprocess.Popen(
        [str(runner.binary), *map(str, flags), "--cpus", str(cpu)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        main, worker = str(process.pid), set()
        seen: dict[str, str] = {}
        deadline_s = time.monotonic() + 300
        # The first moments of the main thread are before it has chosen.
        while (len(seen) < 2 or seen[main] != str(cpu)) and time.monotonic() < deadline_s:
            assert process.poll() is None, "it ended before it was seen"
            for status in Path(f"/proc/{main}/task").glob("*/status"):
                text = status.read_text()
                # Before it becomes the runner the process is a copy of this one.
                if text.startswith("Name:\tsme2_runner"):
                    cpus = text.partition("Cpus_allowed_list:\t")[2].partition("\n")[0]
                    seen[status.parent.name] = cpus
                    worker |= {cpus} if status.parent.name != main else set()
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert (len(seen), seen[main], worker) == (2, str(cpu), {str(cpu)})

    run = runner.call(*runner.flags(program.pte, program.inputs, threads=2), "--cpus", str(cpu))
    assert run.result.cpus == (cpu,)
    assert {conditions.cpu for conditions in run.result.conditions} == {cpu}


@linux
def test_without_a_choice_the_result_tells_where_it_was_allowed(runner, programs):
    program = programs("two_inputs")
    result = runner.run(program.pte, program.inputs, iterations=4).result
    assert list(result.cpus) == allowed()
    assert result.qos is None
    assert [conditions.at for conditions in result.conditions] == ["start", "middle", "end"]
    readable = {
        cpu
        for cpu in allowed()
        if Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").exists()
    }
    for conditions in result.conditions:
        assert conditions.cpu in allowed()
        assert set(conditions.cpu_khz) <= readable
        assert all(khz > 10_000 for khz in conditions.cpu_khz.values())


def test_one_inference_has_no_middle_and_the_sampler_sees_no_reading(runner, programs):
    program = programs("two_inputs")
    moments = [
        [conditions.at for conditions in runner.run(program.pte, program.inputs, **options).result.conditions]
        for options in ({"iterations": 1}, {"iterations": 6, "kind": "kernels"})
    ]
    assert moments == [["start", "end"]] * 2


@linux
def test_cpus_that_are_not_granted_are_told_with_those_that_are(runner, programs):
    program = programs("two_inputs")
    for choice in ("1023", f"{allowed()[0]},1023"):
        run = runner.call(*runner.flags(program.pte, program.inputs), "--cpus", choice)
        assert run.returncode == 2
        assert "not all granted" in run.error
        assert f"choose among {allowed()[0]}" in run.error
        assert not run.result_file.exists()


@pytest.mark.parametrize("choice", ["x", "1-", "-1", "3-1", "1,,2", "1024", "0x3", "1 2", ","])
def test_a_list_that_is_none_is_a_usage_error(runner, programs, choice):
    program = programs("two_inputs")
    run = runner.call(*runner.flags(program.pte, program.inputs), f"--cpus={choice}")
    assert run.returncode == 2
    assert "--cpus wants a whole number" in run.error


@linux
def test_quality_of_service_is_refused_where_there_is_none(runner, programs):
    program = programs("two_inputs")
    run = runner.call(*runner.flags(program.pte, program.inputs), "--qos", "utility")
    assert run.returncode == 2
    assert "matter of macOS" in run.error
    run = runner.call(*runner.flags(program.pte, program.inputs), "--qos", "fast")
    assert "user-interactive, user-initiated, utility or background" in run.error


def _files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@linux
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs mounts of its own")
def test_frequencies_and_the_hottest_cpu_sensor_are_read_where_the_kernel_has_them(
    runner, programs, tmp_path
):
    """Virtual machines have neither: the runner sees made files in their places, in a mount namespace."""
    program, cpus = programs("two_inputs"), allowed()
    everything = f"0-{max(cpus)}"
    cpu_folder = _files(
        tmp_path / "cpu",
        {
            **{f"cpu{cpu}/cpufreq/scaling_cur_freq": str(1_000_000 + cpu) for cpu in cpus},
            **dict.fromkeys(("online", "possible", "present"), everything),
            "kernel_max": "7",
        },
    )
    zones = [("cpu-0-1", "45500"), ("battery", "99000"), ("CPU-big", "61250"), ("cpu-broken", "-274000")]
    thermal_folder = _files(
        tmp_path / "thermal",
        {
            f"thermal_zone{number}/{name}": text
            for number, (kind, celsius) in enumerate(zones)
            for name, text in (("type", kind), ("temp", celsius))
        },
    )
    mounted = (
        'mount --bind "$1" /sys/devices/system/cpu && mount --bind "$2" /sys/class/thermal && shift 2 &&'
    )
    mounted += ' exec "$@"'
    inside = ["unshare", "--mount", "sh", "-c", mounted, "sh", str(cpu_folder), str(thermal_folder)]
    flags = runner.flags(program.pte, program.inputs, iterations=4)
    done = subprocess.run(
        [*inside, str(runner.binary), *map(str, flags)], capture_output=True, text=True, check=False
    )
    if done.returncode == 32 or "unshare:" in done.stderr:
        pytest.skip(f"no mounts of its own here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    conditions = RunnerResult.read(runner.folder / "result.json").conditions
    assert [each.at for each in conditions] == ["start", "middle", "end"]
    for each in conditions:
        assert each.cpu_khz == {cpu: 1_000_000 + cpu for cpu in cpus}
        assert each.temperature_c == 61.25
