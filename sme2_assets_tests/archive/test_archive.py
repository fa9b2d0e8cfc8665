"""What is exported and measured now equals the archive: or tests would read what no code makes any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sme2_assets.diagnostics.validation import validate
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.arms import Taps
from sme2_assets.evidence.numerics import worst_sqnr_db
from sme2_assets.models.artifact import DELEGATION, OPERATORS, PTE, ExportedModel, read_manifest
from sme2_assets.models.export import export_variant
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests import archive
from sme2_assets_tests.archive import VARIANTS, archived_run
from sme2_assets_tests.archive.make import measure_pair

# Of the machine and the day.
PASSING = ("files", "versions", "torch_import_seconds", "export_seconds", "export_peak_memory_bytes")
STEPS = (
    "loading torch",
    "building",
    "calibrating",
    "exporting",
    "types of its outputs",
    "lowering",
    "planning",
)
STEPS += ("writing the program", "once more, with taps", "writing", "exported in")


@pytest.mark.parametrize(
    "variant", [VARIANTS[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in VARIANTS[1:])]
)
def test_a_fresh_export_is_the_archived_one_and_tells_its_steps(
    variant: str, exported: Callable[[str], ExportedModel], tmp_path: Path
) -> None:
    archived, told = exported(variant), list[str]()
    fresh = export_variant(variant, tmp_path, log=told.append)
    assert (fresh.cached, archived.cached) == (False, True)
    facts = [asdict(read_manifest(model.manifest)) for model in (fresh, archived)]
    names = [model.pop("files").keys() for model in facts]
    assert names[0] == names[1]
    stay = [{name: value for name, value in model.items() if name not in PASSING} for model in facts]
    assert stay[0] == stay[1], "if it has to be so: one more EXPORT_CODE_VERSION, and the archive anew"
    for name in (OPERATORS, DELEGATION):
        assert (fresh.directory / name).read_text() == (archived.directory / name).read_text(), name
    taps = [Taps.read(model.directory / "taps.json").as_json()["values"] for model in (fresh, archived)]
    magnitudes = [[value.pop("magnitude") for value in values] for values in taps]
    assert taps[0] == taps[1]
    assert fresh.pte.stat().st_size == (archived.directory / PTE).stat().st_size
    # Another CPU rounds otherwise.
    np.testing.assert_allclose(*magnitudes, rtol=1e-2)
    for given, kept in zip(fresh.inputs, archived.inputs, strict=True):
        np.testing.assert_allclose(np.load(given), np.load(kept), rtol=1e-2, atol=1e-3)
    expected = [[np.load(path) for path in model.expected_outputs] for model in (archived, fresh)]
    assert worst_sqnr_db(*expected) > 40

    steps = [step for step in STEPS if step != "calibrating" or variant.endswith("int8")]
    # On a slow machine a step may say that it is still at work.
    lines = [line for line in told if "still" not in line]
    assert all(step in line and " MiB" in line for step, line in zip(steps, lines, strict=True))


SAME = """
SELECT facts.sme2, facts.backend, delegate, position, facts.name, category, attribution, facts.module,
  facts.source, facts.macs, summary.sme2_evidence AS by_name, facts.sme2_evidence <> 'none' AS shown
FROM operator_facts AS facts
JOIN operator_summary AS summary USING (run_id, backend, delegate, position, sme2, category)
WHERE facts.platform = 'emulated' ORDER BY ALL
"""
COMPARED = """
SELECT level, category, position, off_name, on_name, matrix_operators, sme2_operators_off, sme2_operators_on,
  verdict FROM sme2_comparison ORDER BY ALL
"""


def test_a_fresh_emulated_pair_has_the_operators_and_the_evidence_of_the_archived_one(
    archived: Store,
    exported: Callable[[str], ExportedModel],
    emulator: Qemu,
    emulated_runner: RunnerBinary,
    artifacts_dir: Path,
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    measure_pair(store, EmulatedTarget(artifacts_dir / "tools"), exported(VARIANTS[0]), emulated_runner)
    for state in ("off", "on"):
        [fresh], kept = store.runs.glob(f"*-sme2_{state}"), archived_run("emulated", state)
        files = [{path.relative_to(run) for path in run.rglob("*")} for run in (fresh, kept)]
        assert files[0] == files[1]
    archive.publish(store)
    warehouses = [Warehouse(each.warehouse) for each in (store, archived)]
    for question in (SAME, COMPARED):
        pd.testing.assert_frame_equal(*(warehouse.query(question) for warehouse in warehouses))
    # How many are caught at work is a matter of the machine.
    executed = "SELECT count(*) AS n FROM operator_facts WHERE sme2_evidence = 'executed' AND sme2 = 'on'"
    assert all(warehouse.query(executed)["n"][0] >= 3 for warehouse in warehouses)


def test_every_archived_run_is_whole(archived: Store) -> None:
    for folder in archived.runs.glob("*-sme2_*"):
        made = validate(folder.name, archived)
        assert made.ok, made


def test_an_archive_of_another_version_is_told_with_the_command_that_makes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "executorch-0.7.0-code-1").mkdir()
    monkeypatch.setattr(archive, "EXPORT_CODE_VERSION", 99)
    with pytest.raises(Sme2Error) as error:
        archive.archive(tmp_path)
    for part in ("executorch-0.7.0-code-1", archive.name_here(), "python -m sme2_assets_tests.archive"):
        assert part in str(error.value)
    assert archive.name_here().endswith("-code-99")
