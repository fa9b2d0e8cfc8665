"""How far the kernels pass can be trusted, and what it costs: sampled shares beside ExecuTorch's own times.

Natively, in one session per model: each operator's share of the samples against its share of time in the
trace of the same process, and the inference with tracer, and with tracer and sampler, against without.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from sme2_assets.analysis.samples import kernel_sample_rows, time_share_agreement
from sme2_assets.analysis.timeline import timeline_rows
from sme2_assets.etdump import read_etdump
from sme2_assets.evidence.folder import TRACE_FILE
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.evidence.result import RESULT_FILE, RunnerResult
from sme2_assets.evidence.samples import SAMPLES_FILE, Samples
from sme2_assets.models.export import export_variant
from sme2_assets.profiling.arms import same_runner, sme2_arms
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.report.tables import TextTable
from sme2_assets.runner.build import build_runner
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets import open_target
from sme2_assets.targets.host import host_platform

VARIANTS = ("toy_cnn-fp32", "toy_cnn-int8", "mobilenet_v3_small-fp32")
# Below this an operator's share is a few samples.
LARGE_SHARE = 0.10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("variants", nargs="*", default=VARIANTS, help=f"default: {', '.join(VARIANTS)}")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    platform = host_platform()
    if platform is None:
        raise SystemExit("There is no native platform on this host.")
    artifacts = Store(default_data_root()).artifacts
    runner = build_runner(artifacts, log=lambda _: None)
    rows = []
    for variant in arguments.variants:
        model = export_variant(variant, artifacts, log=lambda _: None)
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder))
            plan = plan_for("hardware", paired=False, rounds=arguments.rounds, kernel_rounds=arguments.rounds)
            [manifest] = measure_session(
                store,
                open_target(platform, store),
                model,
                same_runner(runner),
                sme2_arms(["off"]),
                plan,
                log=lambda _: None,
            )
            rows.append([variant, *_agreement(store, manifest), *_costs(store, manifest)])
    print(TextTable.of(HEADER, rows).markdown())


HEADER = (
    *(
        "model",
        "samples",
        "operators above 10 %",
        "largest difference of shares, points",
        "same, all operators",
    ),
    *("with tracer", "with tracer and sampler"),
)


def _agreement(store: Store, manifest: Manifest) -> list[object]:
    """Over all processes of the kernels pass: sampled shares against times of the same traces."""
    sampled, timed = [], []
    for process in manifest.info.processes:
        if process.pass_kind == "kernels":
            directory = store.run_dir(manifest.run_id) / process.directory
            warmup = RunnerResult.read(directory / RESULT_FILE).traced_warmup
            events = read_etdump(directory / TRACE_FILE)
            sampled.append(kernel_sample_rows(Samples.read(directory / SAMPLES_FILE), events, warmup))
            timed.append(timeline_rows(events, warmup))
    samples = pd.concat(sampled, ignore_index=True)
    agreement = time_share_agreement(samples, pd.concat(timed, ignore_index=True))
    large = agreement[agreement["time_share"] > LARGE_SHARE]
    return [
        int(samples["samples"].sum()),
        len(large),
        None if large.empty else f"{100 * large['difference'].abs().max():.1f}",
        f"{100 * agreement['difference'].abs().max():.1f}",
    ]


def _costs(store: Store, manifest: Manifest) -> list[str]:
    """Median over rounds of the process medians of each pass, over that of the latency pass."""
    medians: dict[str, list[float]] = {}
    for process in manifest.info.processes:
        result = RunnerResult.read(store.run_dir(manifest.run_id) / process.directory / RESULT_FILE)
        medians.setdefault(process.pass_kind, []).append(float(pd.Series(result.iteration_ns).median()))
    typical = {kind: float(pd.Series(values).median()) for kind, values in medians.items()}
    return [f"{typical[kind] / typical['latency'] - 1:+.1%}" for kind in ("etdump", "kernels")]


if __name__ == "__main__":
    main()
