"""Projections beside pairs that others published: the range must hold the published speedup, or this says so.

Measures this host's own baseline, which must be AArch64 without SME2, and projects it on every published SME
unit. The published pairs are of other devices and of the authors' own networks, so that a miss is no proof;
it is a warning of how far a projection carries.
"""

from __future__ import annotations

import argparse
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.defs.resources import Lab
from sme2_assets.launch import open_instance, profile
from sme2_assets.profiling.requests import ProfileRequest
from sme2_assets.report.explain import explain
from sme2_assets.report.tables import TextTable
from sme2_assets.store import Store, default_data_root

SOURCE = "https://pytorch.org/blog/accelerating-on-device-ml-inference-with-executorch-and-arm-sme2"


@dataclass(frozen=True)
class Published:
    """A pair on one core of an Android device with SME2."""

    variant: str
    off_ms: float
    on_ms: float

    @property
    def speedup(self) -> float:
        return self.off_ms / self.on_ms


PAIRS = (Published("squeeze_sam-fp16", 1163, 298), Published("squeeze_sam-int8", 556, 304))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="data folder of its own; default: data/projection_bench")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of a baseline that is not there yet")
    arguments = parser.parse_args()
    store = Store((arguments.data or default_data_root() / "projection_bench").resolve())
    store.artifacts.mkdir(parents=True, exist_ok=True)
    lab = Lab(data_root=str(store.root))
    if platform.machine() not in ("aarch64", "arm64"):
        print("A projection takes a baseline on an AArch64 CPU; this is another one.", file=sys.stderr)
        return 1
    rows = []
    for pair in PAIRS:
        insights = explain(lab.warehouse, _baseline(lab, pair.variant, arguments.rounds)).insights
        projections = [row for insight in insights if insight.kind == "projection" for row in insight.rows]
        if not projections:
            print(f"{pair.variant}: no projection; it takes an AArch64 CPU without SME2.", file=sys.stderr)
            return 1
        rows += [
            [
                pair.variant,
                f"{pair.off_ms:.0f} to {pair.on_ms:.0f} ms, {pair.speedup:.2f}x",
                f"{row['inference_ms']:.0f} ms, {row['eligible_ms'] / row['inference_ms']:.0%} eligible",
                row["unit"],
                f"{row['speedup_low']:.2f}x to {row['speedup_high']:.2f}x",
                "yes" if row["speedup_low"] <= pair.speedup <= row["speedup_high"] else "no",
            ]
            for row in projections
        ]
    header = ("model", "published", "baseline here", "SME unit", "projection", "holds the published one")
    print(TextTable.of(header, rows).markdown())
    print(f"\nPublished: {SOURCE}")
    return 0


def _baseline(lab: Lab, variant: str, rounds: int) -> str:
    """The session of the baseline that is there, or of one that is measured now."""
    asked = "SELECT session_id FROM latest_runs WHERE variant = ? AND platform = 'linux' AND sme2 = 'off'"
    if lab.warehouse.query(asked, [variant]).empty:
        with open_instance(lab.store) as instance:
            request = ProfileRequest(variant, "linux", ("off",))
            profile(lab, instance, [request], {"rounds": rounds, "timeout_s": 900.0}, print)
    return str(lab.warehouse.query(asked, [variant])["session_id"].iloc[0])


if __name__ == "__main__":
    sys.exit(main())
