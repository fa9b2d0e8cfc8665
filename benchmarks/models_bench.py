"""Every kind of model that can be profiled, at every precision it has: one table.

Exports each variant, measures it natively with SME2 off, and under emulation with SME2 on and off, all
through the same assets as everything else; then reads the table from the warehouse. What fails is a row
with its cause. A second run goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.launch import open_instance, profile
from sme2_assets.models.artifact import ModelManifest, read_manifest
from sme2_assets.models.registry import model_spec, requested
from sme2_assets.profiling.requests import ProfileRequest
from sme2_assets.report.tables import TextTable
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets.host import host_platform

# The large ones natively at their full size; under emulation at one that ends today.
MODELS = (
    "toy_cnn",
    "mobilenet_v3_small",
    "edgetam_image_encoder",
    "edgetam_image_encoder@size=128",
    "squeeze_sam",
    "squeeze_sam@size=64",
    "tiny_lm_prefill",
    "tiny_lm_decode",
    "executorch:ds_cnn",
    "executorch:mobilenet_v1_025",
    "executorch:resnet8",
    "executorch:deep_autoencoder",
    "executorch:lstm",
    "executorch:sdpa",
    "hf:vit",
    "hf:bert",
    "hf:gpt2@part=whole",
)
SETTINGS = {"quiet_patience_s": 0.0, "timeout_s": 900.0}


@dataclass(frozen=True)
class Row:
    """A variant, and why it could not be measured where it could not."""

    variant: str
    failure: str | None = None


def main() -> None:
    arguments = _arguments()
    store = Store((arguments.data or default_data_root() / "models_bench").resolve())
    store.artifacts.mkdir(parents=True, exist_ok=True)
    lab = Lab(data_root=str(store.root))
    rows = []
    with open_instance(store) as instance:
        for variant, platforms in _variants(arguments.models or MODELS):
            started = time.monotonic()
            rows.append(_measured(lab, instance, variant, platforms, arguments.rounds))
            print(
                f"{variant}: {rows[-1].failure or 'measured'} ({time.monotonic() - started:.0f} s)",
                file=sys.stderr,
            )
    table = TextTable.of(HEADER, [_cells(lab, row) for row in rows])
    print(table.markdown())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "models", nargs="*", help="models or variants, as `sme2 profile` takes them; default: all"
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds of the native measurement")
    parser.add_argument("--data", type=Path, help="data folder of its own; default: data/models_bench")
    return parser.parse_args()


def _variants(names: tuple[str, ...] | list[str]) -> Iterator[tuple[str, list[str]]]:
    for name in names:
        for variant in requested(name):
            spec = model_spec(variant.model)
            small = not spec.large or spec.values
            yield variant.key, [host_platform() or "", *(["emulated"] if small else [])]


def _measured(lab: Lab, instance, variant: str, platforms: list[str], rounds: int) -> Row:  # type: ignore[no-untyped-def]
    for platform in platforms:
        states = ("off", "on") if platform == "emulated" else ("off",)
        found = lab.warehouse.query(
            "SELECT count(*) AS n FROM runs WHERE variant = ? AND platform = ?", [variant, platform]
        )
        if found["n"].iloc[0] >= len(states):
            continue
        settings = SETTINGS if platform == "emulated" else {**SETTINGS, "rounds": rounds}
        try:
            profile(lab, instance, [ProfileRequest(variant, platform, states)], settings, lambda _: None)
        except Sme2Error as error:
            return Row(variant, error.what.splitlines()[0])
    return Row(variant)


HEADER = (
    *("model", "export s", "size kB", "operators delegated", "SQNR dB", "native ms, SME2 off"),
    *("CONV and GEMM with SME2", "their samples in SME kernels", "missed SME2"),
)


def _cells(lab: Lab, row: Row) -> list[object]:
    manifest = _manifest(lab.store, row.variant)
    exported: list[object] = [None] * 3
    if manifest is not None:
        share = manifest.delegated_share
        exported = [
            f"{manifest.export_seconds:.1f}",
            f"{manifest.files['model.pte'].bytes / 1000:.0f}",
            None if share is None else f"{share:.0%}",
        ]
    if row.failure is not None:
        return [row.variant, *exported, None, None, None, None, row.failure]
    return [row.variant, *exported, *_native(lab, row.variant), *_emulated(lab, row.variant)]


def _manifest(store: Store, variant: str) -> ModelManifest | None:
    current = store.current("model", variant)
    if current is None:
        return None
    return read_manifest(store.artifacts / "models" / variant / current / "manifest.json")


def _native(lab: Lab, variant: str) -> list[object]:
    found = lab.warehouse.query(
        "SELECT sqnr_db, median_ns FROM latest_runs JOIN latency_summary USING (run_id) "
        "WHERE latest_runs.variant = ? AND latest_runs.platform = ? AND latest_runs.sme2 = 'off'",
        [variant, host_platform()],
    )
    if found.empty:
        return [None, None]
    run = found.iloc[0]
    return [f"{run['sqnr_db']:.1f}", f"{run['median_ns'] / 1e6:.3f}"]


def _emulated(lab: Lab, variant: str) -> list[object]:
    matrix = lab.warehouse.query(
        "SELECT operator_facts.* FROM operator_facts JOIN latest_runs USING (run_id) "
        "WHERE latest_runs.variant = ? AND latest_runs.platform = 'emulated' AND latest_runs.sme2 = 'on' "
        "AND category IN ('CONV', 'GEMM')",
        [variant],
    )
    if matrix.empty:
        return [None, None, None]
    taken = (matrix["on_sme_unit"] == "on").sum()
    samples = matrix["samples"].sum()
    share = f"{matrix['sme_samples'].sum() / samples:.0%}" if samples else None
    return [f"{taken} of {len(matrix)}", share, _missed(lab, matrix)]


def _missed(lab: Lab, matrix: pd.DataFrame) -> str:
    reasons = lab.warehouse.query(
        "SELECT reason, count(*) AS n FROM missed_sme2 WHERE run_id = ? GROUP BY reason ORDER BY n DESC",
        [matrix["run_id"].iloc[0]],
    )
    return ", ".join(f"{row['n']} {row['reason']}" for row in reasons.to_dict("records")) or "none"


if __name__ == "__main__":
    main()
