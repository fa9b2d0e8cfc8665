"""Run folders as the public kit leaves them, with times that the test knows."""

from __future__ import annotations

import json
from pathlib import Path

from sme2_assets_tests.made.build_trace import Block, build_trace
from sme2_assets_tests.made.traces import LOADING, Delegate, Portable, inference


def blocks(convolution_us: int, inferences: int = 3) -> list[Block]:
    """Inferences of one convolution and one portable operator; later ones take longer."""
    made = []
    for number in range(inferences):
        convolution_ns = 1000 * (convolution_us + number)
        calls = [
            Delegate([("Convolution (NHWC, F32) IGEMM #1", convolution_ns)], convolution_ns + 321),
            Portable("native_call_mean.out", 1000, 1500),
        ]
        made.append(inference(calls, convolution_ns + 5000, 1_000_000 + number * 10_000_000))
    return made


def trace(convolution_us: int, inferences: int = 3, *, size_prefix: bool = True) -> bytes:
    return build_trace([LOADING, *blocks(convolution_us, inferences)], size_prefix=size_prefix)


def write_kit_folder(root: Path, *, manifest: bool = True) -> Path:
    """`out_toy_cnn/runs/mac` with both experiments, as the kit's pipeline writes it."""
    folder = root / "out_toy_cnn" / "runs" / "mac"
    results = []
    for sme2, convolution_us in (("on", 20), ("off", 50)):
        experiment = f"mac_sme2_{sme2}"
        stem = f"toy_cnn_xnnpack_fp16_{experiment}_t1"
        path = folder / experiment / f"{stem}.etdump"
        path.parent.mkdir(parents=True)
        # With the size in front and without: both are in use.
        path.write_bytes(trace(convolution_us, size_prefix=sme2 == "on"))
        path.with_suffix(".log").write_text(
            "Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_4x8__neonfma'."
        )
        name = str(path.relative_to(folder))
        reference = {"path": f"/somewhere/else/{name}", "relative_path": name, "exists": True}
        results.append(
            {
                "experiment": experiment,
                "mode": "timing",
                "status": "ok",
                "threads": 1,
                "runs": 3,
                "warmup": 1,
                "artifacts": {"etdump": reference},
            }
        )
    if manifest:
        document = {
            "schema_version": 1,
            "model": "model_profiling/out_toy_cnn/artifacts/toy_cnn_xnnpack_fp16.pte",
            "executorch": {"actual_sha": "0123abc", "compatible": True},
            "results": results,
        }
        (folder / "manifest.json").write_text(json.dumps(document))
        metrics = [
            {
                "experiment": result["experiment"],
                "mode": "timing",
                "metrics": {"latency_ms": [0.025, 0.026, 0.027], "median_ms": 0.026},
            }
            for result in results
        ]
        (folder / "metrics.json").write_text(json.dumps({"schema_version": 1, "results": metrics}))
    return folder
