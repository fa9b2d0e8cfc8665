"""Summaries of a run in the public kit's form: manifest, metrics, pipeline summary, analysis summary.

The keys are the kit's, so that tools that read its files can read these; extra keys of our own say what
theirs cannot: which pass a time is from, how many rounds it rests on, its fidelity and, for a pair, the
verdict with its interval. Emulated times mean nothing, so there are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sme2_assets.errors import BuildError, EvidenceError
from sme2_assets.evidence.digits import interval_beside
from sme2_assets.models.spec import PRECISIONS, Variant
from sme2_assets.toolchain.sdk import installed_sdk
from sme2_assets.warehouse.read import rows_of_view
from sme2_assets.warehouse.store import Warehouse

KIT_SCHEMA = 1
# In the wheel's version.py.
_COMMIT = re.compile(r"^git_version\b.*?['\"]([0-9a-f]{40})['\"]", re.MULTILINE)
# Times more than this many interquartile ranges from the quartiles are outliers, as in the kit.
OUTLIER_RANGES = 1.5
EMULATED_NOTE = "Emulated times mean nothing; which kernels ran and what they computed is real."
REFERENCE_NOTE = "Native times on another instruction set: a reference, which says nothing about SME2."
FOREIGN_NOTE = "A foreign run: its provenance is unknown, and it was measured alone. It supports no verdict."


@dataclass(eq=False)
class ExportedArm:
    """A run that is exported, with its names in the kit's form and the files written for it."""

    run: dict[str, Any]
    # What the configuration of the kit calls it, if one asked for it.
    name: str | None = None
    files: dict[str, str] = field(default_factory=dict)

    @property
    def experiment(self) -> str:
        """`linux_sme2_on`, as the kit names its experiments; other arms end in their letter."""
        if self.name is not None:
            return self.name
        name = f"{_or_unknown(self.run['platform'])}_sme2_{_or_unknown(self.run['sme2'])}"
        return f"{name}_{self.run['arm']}" if self.run["experiment"] in ("aa", "arms") else name

    @property
    def threads(self) -> int | None:
        return None if pd.isna(self.run["threads"]) else int(self.run["threads"])

    @property
    def model_stem(self) -> str:
        return model_stem(self.run)

    @property
    def prefix(self) -> str:
        threads = "" if self.threads is None else f"_t{self.threads}"
        return f"{self.model_stem}_{self.experiment}{threads}"

    @property
    def emulated(self) -> bool:
        return self.run["fidelity"] == "emulated"


def model_stem(run: dict[str, Any]) -> str:
    """The stem that the kit gives a .pte; the model's name for one that came as it is."""
    model, precision = run["model"], run["precision"]
    if pd.isna(model):
        return str(run["variant"])
    return Variant(model, precision).file_stem if precision in PRECISIONS else str(model)


def robust_statistics(latencies_ms: Sequence[float]) -> dict[str, Any]:
    """Statistics that outliers hardly affect, under the kit's names. All times must be known."""
    values = np.asarray(latencies_ms, dtype=float)
    q1, q3 = np.percentile(values, [25, 75])
    low, high = (q1 - OUTLIER_RANGES * (q3 - q1), q3 + OUTLIER_RANGES * (q3 - q1))
    inside = values[(values >= low) & (values <= high)]
    outside = values[(values < low) | (values > high)]
    return {
        "count": len(values),
        **_moments(values),
        "min_ms": float(values.min()),
        "max_ms": float(values.max()),
        "percentiles": {f"p{at}": float(np.percentile(values, at)) for at in (50, 75, 90, 95, 99)},
        "outliers": {
            "count": len(outside),
            "percentage": 100 * len(outside) / len(values),
            "values": outside.tolist(),
            "bounds": {"lower": float(low), "upper": float(high)},
        },
        "trimmed_mean_5_ms": _trimmed_mean(values, 0.05),
        "trimmed_mean_10_ms": _trimmed_mean(values, 0.10),
        "robust_stats": {"count": len(inside), **_moments(inside)},
        "latencies_ms": values.tolist(),
        "run_indices": list(range(len(values))),
    }


def latency_statistics(warehouse: Warehouse, arm: ExportedArm) -> dict[str, Any] | None:
    """Robust statistics of a run's timed inferences; None if its times mean nothing."""
    if arm.emulated:
        return None
    rows = warehouse.query(
        'SELECT "pass", round, duration_ns, execute_ns FROM inferences '
        "WHERE run_id = ? AND NOT is_warmup ORDER BY round, iteration",
        [arm.run["run_id"]],
    )
    # Times from the pass without tracer, if there is one: the tracer itself costs time.
    latency = rows[rows["pass"] == "latency"]
    kind, column = ("latency", "duration_ns") if len(latency) else ("etdump", "execute_ns")
    timed = latency if len(latency) else rows[rows["pass"] == "etdump"]
    rounds = timed.groupby("round")[column].median() / 1e6
    return {
        "pass": kind,
        "rounds": len(rounds),
        "median_of_rounds_ms": float(rounds.median()),
        "round_medians_ms": rounds.tolist(),
        **robust_statistics((timed[column] / 1e6).tolist()),
    }


def manifest(
    arms: Sequence[ExportedArm], generated_at: str, run_manifests: dict[str, Any], config: str | None
) -> dict[str, Any]:
    first = arms[0].run
    return {
        **_head(arms, generated_at),
        "config": config,
        "output_root": ".",
        "executorch": {
            "present": None,
            "expected_sha": None,
            "actual_sha": _executorch_commit(run_manifests[first["run_id"]]),
            "version": _known(first["executorch_version"]),
        },
        "results": [
            {
                "experiment": arm.experiment,
                "mode": "timing",
                "status": "ok",
                "threads": arm.threads,
                "runs": _known(arm.run["iterations"]),
                "rounds": _known(arm.run["rounds"]),
                "warmup": _known(arm.run["warmup"]),
                "run_id": arm.run["run_id"],
                "artifacts": _artifacts(arm),
            }
            for arm in arms
        ],
        # By run: all provenance as written when the run was measured.
        "run_manifests": run_manifests,
    }


def metrics(
    arms: Sequence[ExportedArm],
    generated_at: str,
    statistics: dict[str, Any],
    kernels: dict[str, pd.DataFrame],
) -> dict[str, Any]:
    return {
        **_head(arms, generated_at),
        "results": [
            {
                "experiment": arm.experiment,
                "mode": "timing",
                "threads": arm.threads,
                "runs": _known(arm.run["iterations"]),
                "warmup": _known(arm.run["warmup"]),
                "run_id": arm.run["run_id"],
                "fidelity": _known(arm.run["fidelity"]),
                "device": _known(arm.run["device"]),
                "arch": _known(arm.run["arch"]),
                "metrics": {
                    "runs": _known(arm.run["iterations"]),
                    "rounds": _known(arm.run["rounds"]),
                    "threads": arm.threads,
                    **_latency_metrics(statistics[arm.run["run_id"]]),
                    **_kernel_metrics(kernels[arm.run["run_id"]]),
                    "load_ms": _ms(arm.run["load_ns"]),
                    "peak_memory_bytes": _known(arm.run["peak_memory_bytes"]),
                    "sqnr_db": _known(arm.run["sqnr_db"]),
                },
                "artifact_refs": _artifacts(arm),
            }
            for arm in arms
        ],
    }


def analysis_summary(
    warehouse: Warehouse,
    arms: Sequence[ExportedArm],
    generated_at: str,
    comparison: pd.DataFrame,
    etrecord: str | None,
) -> dict[str, Any]:
    """Time by category of each arm. The kit's totals would add on to off; here they are the first arm's."""
    per_arm = [_categories(warehouse, arm) for arm in arms]
    return {
        **_head(arms, generated_at),
        "run_dir": ".",
        "etrecord": etrecord,
        "etdump_count": sum(entry["etdump_count"] for entry in per_arm),
        "category_totals_ms": per_arm[0]["categories_ms"],
        "category_totals_of": arms[0].experiment,
        "per_etdump": per_arm,
        "csv_files": [name for arm in arms for name in arm.files.values() if name.endswith(".csv")],
        "comparison": json.loads(comparison.to_json(orient="records", date_format="iso")),
        "notes": _notes(arms),
    }


def pipeline_summary(
    arms: Sequence[ExportedArm],
    generated_at: str,
    statistics: dict[str, Any],
    comparison: pd.DataFrame,
    config: str | None,
) -> dict[str, Any]:
    return {
        **_head(arms, generated_at),
        "output_root": ".",
        "config": config,
        "runs": [
            {
                "experiment": arm.experiment,
                "threads": arm.threads,
                "mode": "timing",
                "status": "ok",
                "runs": _known(arm.run["iterations"]),
                "rounds": _known(arm.run["rounds"]),
                "warmup": _known(arm.run["warmup"]),
                "run_id": arm.run["run_id"],
                "fidelity": _known(arm.run["fidelity"]),
                "device": _known(arm.run["device"]),
                "arch": _known(arm.run["arch"]),
                "flags": _list(arm.run["flags"]),
                "metrics": _latency_metrics(statistics[arm.run["run_id"]])
                | {"robust_stats_path": arm.files.get("robust_stats")},
                "robust_stats": statistics[arm.run["run_id"]],
                "paths": dict(arm.files),
            }
            for arm in arms
        ],
        "comparison": _verdict(comparison),
        "notes": _notes(arms),
    }


def pipeline_markdown(
    summary: dict[str, Any], categories: dict[str, pd.DataFrame], arms: Sequence[ExportedArm]
) -> str:
    """The pipeline summary for people."""
    lines = [
        f"# Pipeline summary: {arms[0].model_stem}",
        "",
        f"- Generated: {summary['generated_at']}",
        f"- Runs: {', '.join(arm.run['run_id'] for arm in arms)}",
        *(f"- {note}" for note in summary["notes"]),
        "",
        "## Timing Results",
        "",
        "| Experiment | Threads | Rounds | Runs | Warmup | Median (ms) | Mean (ms) | CV (%) | Pass |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in summary["runs"]:
        values = entry["metrics"]
        cells = [
            *(entry[name] for name in ("experiment", "threads", "rounds", "runs", "warmup")),
            *(_digits(values.get(name)) for name in ("median_ms", "mean_ms", "cv_percent")),
            values.get("pass"),
        ]
        lines.append(f"| {' | '.join(_cell(value) for value in cells)} |")
    lines += ["", *_verdict_lines(summary["comparison"]), "## Time by category", ""]
    for arm in arms:
        lines += [
            f"### {arm.experiment}",
            "",
            *_category_lines(categories[arm.run["run_id"]], arm.emulated),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _head(arms: Sequence[ExportedArm], generated_at: str) -> dict[str, Any]:
    return {
        "schema_version": KIT_SCHEMA,
        "generated_at": generated_at,
        "model": f"{arms[0].model_stem}.pte",
        "variant": arms[0].run["variant"],
        "model_sha256": _known(arms[0].run["pte_sha256"]),
    }


def _executorch_commit(run_manifest: Any) -> str | None:
    """The commit of ExecuTorch that a run was measured with, if its wheel is of the version installed here.

    The wheels of a version for all kinds of machines are made from one commit.
    """
    try:
        versions, sdk = run_manifest["info"]["versions"], installed_sdk()
        here, there = (version.partition("+")[0] for version in (sdk.version, versions["executorch"]))
        if here != there or "executorch_record_sha256" not in versions:
            return None
        found = _COMMIT.search((sdk.folder / "version.py").read_text())
    except (BuildError, LookupError, TypeError, AttributeError, OSError):
        # Measured from source or elsewhere, or a trace of somebody else.
        return None
    return found and found[1]


def _notes(arms: Sequence[ExportedArm]) -> list[str]:
    notes = [EMULATED_NOTE] if any(arm.emulated for arm in arms) else []
    notes += [REFERENCE_NOTE] if any(arm.run["fidelity"] == "reference" for arm in arms) else []
    return notes + ([FOREIGN_NOTE] if any(arm.run["experiment"] == "foreign" for arm in arms) else [])


def _artifacts(arm: ExportedArm) -> dict[str, Any]:
    """Paths as the kit's own scripts resolve them: below the folder that holds the manifest."""
    return {
        kind: {"path": name, "relative_path": name, "exists": True}
        for kind, name in sorted(arm.files.items())
    }


def _latency_metrics(statistics: dict[str, Any] | None) -> dict[str, Any]:
    names = ("pass", "median_ms", "mean_ms", "min_ms", "max_ms", "cv_percent", "median_of_rounds_ms")
    if statistics is None:
        return {"latency_ms": [], **dict.fromkeys(names)}
    return {"latency_ms": statistics["latencies_ms"], **{name: statistics[name] for name in names}}


def _kernel_metrics(kernels: pd.DataFrame) -> dict[str, int]:
    ran = kernels[kernels["evidence"] != "registered"]
    sampled = ran[ran["evidence"] == "sampled"]
    return {
        "kernel_rows": len(ran),
        "sme_kernel_rows": int(ran["has_sme"].sum()),
        "sme2_kernel_rows": int(ran["has_sme2"].sum()),
        "sme2_kernel_samples": int(sampled.loc[sampled["has_sme2"] == 1, "count"].sum()),
    }


def _categories(warehouse: Warehouse, arm: ExportedArm) -> dict[str, Any]:
    rows = rows_of_view(warehouse, "category_summary", arm.run["run_id"])
    return {
        "experiment": arm.experiment,
        "run_id": arm.run["run_id"],
        "fidelity": _known(arm.run["fidelity"]),
        "device": _known(arm.run["device"]),
        "arch": _known(arm.run["arch"]),
        "etdump": arm.files.get("etdump"),
        "etdump_count": sum(name.endswith(".etdump") for name in arm.files.values()),
        "rows": int(rows["operators"].sum()),
        "categories_ms": {} if arm.emulated else _by_category(rows, rows["mean_ns"] / 1e6),
        "categories_pct": {} if arm.emulated else _by_category(rows, 100 * rows["share"]),
        "sme2_operators": _by_category(rows.dropna(subset="sme2_operators"), rows["sme2_operators"].dropna()),
        "sme_unit": _unit_use(warehouse, arm),
        "csv_timeline": arm.files.get("timeline_all"),
        "csv_stats": arm.files.get("stats"),
    }


def _unit_use(warehouse: Warehouse, arm: ExportedArm) -> dict[str, Any] | None:
    """How much of the run is on the SME unit, as in the view unit_use; None if the view has no row for it."""
    rows = rows_of_view(warehouse, "unit_use", arm.run["run_id"])
    names = (
        *("matrix_operators", "on_unit", "off_unit", "unknown", "by_name_alone", "uncounted"),
        *("macs", "macs_on_unit", "macs_on_unit_at_most"),
    )
    return None if rows.empty else {name: _known(rows[name].iloc[0]) for name in names}


def _by_category(rows: pd.DataFrame, values: pd.Series) -> dict[str, Any]:
    # Of an inference that takes no time, nothing has a share.
    return dict(zip(rows["category"].tolist(), map(_known, values), strict=True))


def _verdict(comparison: pd.DataFrame) -> dict[str, Any] | None:
    whole = comparison[comparison["level"] == "model"]
    if whole.empty:
        return None
    columns = ["off_run_id", "on_run_id", "verdict", "reason", "speedup", "speedup_low", "speedup_high"]
    columns += ["n", "p_value", "experiment", "fidelity", "confidence", "confidence_reason"]
    return json.loads(whole[columns].to_json(orient="records"))[0]


def _verdict_lines(verdict: dict[str, Any] | None) -> list[str]:
    if verdict is None:
        return []
    title, ratio = "SME2 on against off", "Speedup"
    if verdict["experiment"] == "aa":
        title, ratio = "Identical arms: noise", "Ratio"
    lines = [f"## {title}", "", f"{verdict['verdict']}: {verdict['reason']}"]
    if verdict["speedup"] is not None:
        interval = "too few for an interval"
        if verdict["speedup_low"] is not None:
            ends = interval_beside(verdict["speedup_low"], verdict["speedup_high"], 1, 3)
            interval = f"95 % interval {ends}"
        lines.append(f"{ratio} {verdict['speedup']:.3f} ({interval}, {verdict['n']} paired rounds).")
    return [*lines, ""]


def _category_lines(rows: pd.DataFrame, emulated: bool) -> list[str]:
    lines = ["| Category | Operators | On the SME unit | Mean (ms) | Share |", "|---|---|---|---|---|"]
    for _, row in rows.iterrows():
        time = "-" if emulated else f"{row['mean_ms']:.4f}"
        share = "-" if emulated or pd.isna(row["pct_total"]) else f"{row['pct_total']:.1f} %"
        told, unknown = _known(row["sme2_operators"]), _known(row["sme2_unknown_operators"])
        on_unit = "-" if told is None else f"{told}, {unknown} unknown" if unknown else str(told)
        lines.append(f"| {row['category']} | {row['operators']} | {on_unit} | {time} | {share} |")
    return lines


def _moments(values: np.ndarray) -> dict[str, float | None]:
    mean = float(values.mean())
    # The scatter of one value is not zero, but unknown.
    scatter = float(values.std(ddof=1)) if len(values) > 1 else None
    return {
        "mean_ms": mean,
        "median_ms": float(np.median(values)),
        "std_dev_ms": scatter,
        "cv_percent": 100 * scatter / mean if scatter is not None and mean > 0 else None,
    }


def _trimmed_mean(values: np.ndarray, share: float) -> float:
    """The mean without that share of the values at each end."""
    cut = int(share * len(values))
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _ms(nanoseconds: Any) -> float | None:
    known = _known(nanoseconds)
    return None if known is None else float(known) / 1e6


def _known(value: Any) -> Any:
    """The value for JSON; None if it is NULL in the warehouse."""
    if value is None or pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _list(value: Any) -> list[Any]:
    """A list from the warehouse; NULL, in whatever form pandas gives it, is an empty list."""
    return list(value) if isinstance(value, list | np.ndarray) else []


def _or_unknown(value: Any) -> str:
    return "unknown" if value is None or pd.isna(value) else str(value)


def read_run_manifest(folder: Path) -> Any:
    """What was written when a run was measured, or stated when it was ingested; None if it is gone."""
    for name in ("manifest.json", "foreign.json"):
        if (folder / name).is_file():
            try:
                return json.loads((folder / name).read_text())
            except ValueError as error:
                raise EvidenceError(
                    f"{folder / name} is not a JSON document: {error}.",
                    "Restore the folder from a copy, or leave out the format json.",
                ) from error
    return None
