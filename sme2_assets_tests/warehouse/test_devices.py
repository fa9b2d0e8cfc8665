"""Device and architecture are part of what a run is: two of them never form a pair, a series or a floor."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.evidence.folder import RunFolder
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import device_noise_floor
from sme2_assets.warehouse.history import find_regressions, series_of
from sme2_assets.warehouse.read import run_of_id
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.newest import compare_newest

HERE = MadeRun(rounds=1, iterations=1)
ELSEWHERE: dict[str, dict[str, Any]] = {
    "another host": {"device": "a-cpu-ffffff"},
    "another instruction set": {"arch": "riscv64", "fidelity": "reference"},
}


def nights(run: MadeRun, count: int, first: int = 0) -> list[MadeRun]:
    """The same run, night after night."""
    return [
        replace(
            run,
            session_id=f"202601{night + 1:02d}T000000-{run.device[-6:]}",
            started_at=run.started_at + timedelta(days=night),
        )
        for night in range(first, first + count)
    ]


def write(warehouse: Warehouse, folder: Path, runs: list[MadeRun]) -> None:
    ingest(warehouse, *(run.write(folder / "runs") for run in runs))
    warehouse.publish()


@pytest.mark.parametrize("change", [{}, *ELSEWHERE.values()], ids=["the same host", *ELSEWHERE])
def test_a_slower_machine_is_a_series_of_its_own_and_no_regression(
    warehouse: Warehouse, tmp_path: Path, change: dict[str, Any]
):
    slower = replace(HERE, **change, slowness=1.5)
    write(warehouse, tmp_path, [*nights(HERE, 6), *nights(slower, 6, first=6)])
    latency = {key: rows for key, rows in series_of(warehouse).items() if key[-1] == "latency"}
    assert {key[2:4] for key in latency} == {(run.device, run.arch) for run in (HERE, slower)}
    assert sorted(len(rows) for rows in latency.values()) == ([6, 6] if change else [12])
    found = find_regressions(warehouse, tmp_path / "none")
    assert set(found["category"]) >= (set() if change else {"latency", "CONV"})
    assert found.empty == bool(change)


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=list(ELSEWHERE))
def test_each_machine_has_its_newest_run(warehouse: Warehouse, tmp_path: Path, change: dict[str, Any]):
    there = replace(HERE, **change)
    write(warehouse, tmp_path, [*nights(HERE, 2), *nights(there, 2, first=2)])
    latest = warehouse.query("SELECT device, arch, started_at FROM latest_runs ORDER BY started_at")
    assert list(zip(latest["device"], latest["arch"], strict=True)) == [
        (HERE.device, HERE.arch),
        (there.device, there.arch),
    ]
    assert [moment.day for moment in latest["started_at"]] == [2, 4]


def test_each_machine_has_its_newest_comparison(warehouse: Warehouse, tmp_path: Path):
    later = {"session_id": "20260102T000000-ffffff", "started_at": HERE.started_at + timedelta(days=1)}
    for run in (HERE, replace(HERE, device="a-cpu-ffffff", **later)):
        write(warehouse, tmp_path, [run, replace(run, sme2="on")])
        compare_newest(warehouse, run.variant, run.platform)
        warehouse.publish()
    compared = warehouse.query("SELECT DISTINCT device, arch, session_id FROM sme2_comparison")
    assert len(compared) == 2


def test_the_noise_of_one_machine_is_no_floor_of_another(warehouse: Warehouse, tmp_path: Path):
    write(warehouse, tmp_path, [HERE, replace(HERE, sme2="on")])
    rows = compare_newest(warehouse, HERE.variant, HERE.platform)
    for session in range(10):
        keys = {"variant": HERE.variant, "platform": "linux", "session_id": f"20260201T00000{session}-aaaaaa"}
        aa = rows.assign(factor=None, speedup=1.05).drop(columns=list(keys))
        warehouse.write(COMPARISONS, aa, keys)
    warehouse.publish()
    run = run_of_id(warehouse, HERE.run_id)
    assert device_noise_floor(warehouse, run) == pytest.approx(1.05)
    for change in ({"device": "a-cpu-ffffff"}, {"arch": "x86_64"}, {"threads": 2}):
        assert device_noise_floor(warehouse, {**run, **change}) is None


@pytest.mark.parametrize(
    ("machine", "fidelity", "expected"),
    [
        ({"arch": "aarch64", "cpu": "Neoverse-N1"}, "hardware", ("neoverse-n1", "aarch64", "hardware")),
        ({"arch": "arm64", "cpu": "Apple M4"}, "hardware", ("apple-m4", "aarch64", "hardware")),
        (
            {"arch": "x86_64", "cpu": "Intel(R) Xeon(R) Processor @ 2.90GHz"},
            "hardware",
            ("intel-xeon", "x86_64", "reference"),
        ),
        ({"arch": "aarch64", "cpu": "QEMU -cpu max"}, "emulated", ("qemu-max", "aarch64", "emulated")),
    ],
)
def test_a_run_from_before_devices_had_names_is_read_as_what_it_was(
    tmp_path: Path, machine: dict[str, str], fidelity: str, expected: tuple[str, str, str]
):
    folder = HERE.write(tmp_path)
    path = folder / "manifest.json"
    old = json.loads(path.read_text())
    old |= {"schema": 3, "paired": old.pop("arms") == 2}
    del old["factor"]
    old["context"] |= {"device": "host-cpu", "fidelity": fidelity}
    old["context"]["machine"] |= machine
    path.write_text(json.dumps(old))
    context = RunFolder.open(folder).manifest.context
    assert (context.device, context.arch, context.fidelity) == expected
