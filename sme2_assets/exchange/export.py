"""A run as a folder of files for other tools, written whole or not at all."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from sme2_assets.errors import Sme2Error, WarehouseError, told
from sme2_assets.evidence.folder import LOG_FILE, TRACE_FILE, ForeignFolder, open_verified
from sme2_assets.evidence.foreign import FOREIGN
from sme2_assets.exchange import pairs, perfetto, summaries, tables
from sme2_assets.exchange.summaries import ExportedArm
from sme2_assets.models.artifact import ETRECORD, PTE
from sme2_assets.store import Store, sha256_of_file, write_json
from sme2_assets.warehouse.csv_files import write_csv
from sme2_assets.warehouse.read import run_of_id, runs_of_session, with_off_and_on, work_of_session
from sme2_assets.warehouse.store import Warehouse

FORMATS = ("csv", "parquet", "json", "markdown", "perfetto", "etdump")
LISTING_FILE = "export.json"
LISTING_SCHEMA = 1
LATEST = "latest"
# What sorting a timeline may take; beyond it, DuckDB goes on in files.
MEMORY_LIMIT = "500MB"
# What the kit calls these files in its manifest.
_KIT_KINDS = {
    "exec_all_runs_timeline": "timeline_all",
    "exec_run0_timeline": "timeline_run0",
    "exec_ops_stats": "stats",
    "kernels": "kernel_csv",
}


def find_run(
    warehouse: Warehouse, run: str, model: str | None, platform: str | None, sme2: str | None
) -> dict[str, Any]:
    """A run by its id; `latest` is the newest with the given model, platform and SME2 state."""
    if run != LATEST:
        return run_of_id(warehouse, run)
    rows = warehouse.query(
        "SELECT run_id FROM latest_runs WHERE coalesce(variant = $model OR model = $model, true) "
        "AND coalesce(platform = $platform, true) AND coalesce(sme2 = $sme2, true) "
        "ORDER BY coalesce(sequence, 0) DESC, started_at DESC, sme2 DESC LIMIT 1",
        {"model": model, "platform": platform, "sme2": sme2},
    )
    if rows.empty:
        asked = ", ".join(name for name in (model, platform, sme2 and f"SME2 {sme2}") if name)
        raise Sme2Error(
            f"There is no run{' of ' + asked if asked else ''} in the warehouse yet.",
            "Run `sme2 profile` first, or name a run: `sme2 sql 'SELECT run_id FROM runs'` lists them.",
        )
    return run_of_id(warehouse, rows["run_id"].iloc[0])


def default_folder(store: Store, run: dict[str, Any]) -> Path:
    return store.root / "exports" / str(run["run_id"])


def export_run(
    store: Store,
    run: dict[str, Any],
    formats: Sequence[str],
    folder: Path,
    *,
    inferences: int = perfetto.MOST_INFERENCES,
    log: Callable[[str], None] = lambda message: None,
    called: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> list[Path]:
    """Writes a run, and the other arm of its session, in these formats; returns the files, in order.

    `called` is what the arms are called, by state of SME2; `config` is the file that asked for them.
    """
    _require_replaceable(folder)
    warehouse = Warehouse(store.warehouse)
    arms = _arms(warehouse, run, called or {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        writer = _Writer(store, warehouse, arms, staging, log, None if config is None else str(config))
        try:
            writer.write(formats, inferences)
        except duckdb.Error as error:
            raise told(error) or WarehouseError(
                f"The rows of run {run['run_id']} cannot be read: {str(error).splitlines()[0]}",
                "Run `sme2 check`: it says what is damaged, and what to do.",
            ) from error
        names = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file())
        write_json(staging / LISTING_FILE, _listing(run, arms, formats, staging, names))
        staging.chmod(0o755)
        _replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return [folder / name for name in (*names, LISTING_FILE)]


def _require_replaceable(folder: Path) -> None:
    """Only an earlier export is replaced: nobody loses another folder by naming it here."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise Sme2Error(f"{folder} is not a folder.", "Name another one with --output.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    written = _files_of_export(folder)
    if written is None:
        raise Sme2Error(
            f"{folder} is not empty and is not an earlier export.", "Name another folder with --output."
        )
    files = (path for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink())
    if strange := [path for path in files if str(path.relative_to(folder)) not in written]:
        raise Sme2Error(
            f"{folder} is an earlier export, but {strange[0]} is not part of it.",
            "Move it elsewhere, or name another folder with --output.",
        )


def _files_of_export(folder: Path) -> set[str] | None:
    """What an export wrote to this folder, by its own list; None if there is no such list."""
    try:
        listing = json.loads((folder / LISTING_FILE).read_bytes())
        return {LISTING_FILE, *listing["file_sha256"]} if listing["run_id"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _replace(staging: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    if folder.exists():
        folder.rename(old)
    try:
        staging.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _arms(warehouse: Warehouse, run: dict[str, Any], called: Mapping[str, str]) -> list[ExportedArm]:
    """The run first, then the other arm if the two were measured together as an SME2 or an identical pair."""
    runs = [run]
    if bool(run["paired"]) and run["experiment"] != "arms":
        session = runs_of_session(warehouse, run["session_id"])
        runs += [other for other in session if other["run_id"] != run["run_id"]]
    return [ExportedArm(each, called.get(each["sme2"])) for each in runs]


def _listing(
    run: dict[str, Any],
    arms: Sequence[ExportedArm],
    formats: Sequence[str],
    folder: Path,
    names: Sequence[str],
) -> dict[str, Any]:
    return {
        "schema": LISTING_SCHEMA,
        "run_id": run["run_id"],
        "runs": [arm.run["run_id"] for arm in arms],
        "formats": list(formats),
        "file_sha256": {name: sha256_of_file(folder / name) for name in names},
    }


class _Writer:
    """Fills one folder."""

    def __init__(
        self,
        store: Store,
        warehouse: Warehouse,
        arms: Sequence[ExportedArm],
        folder: Path,
        log: Callable[[str], None],
        config: str | None,
    ) -> None:
        self.store, self.warehouse, self.arms, self.folder, self.log = store, warehouse, arms, folder, log
        self.config = config
        self.etrecord: str | None = None
        self.generated_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._made: dict[tuple[str, str], pd.DataFrame] = {}

    def write(self, formats: Sequence[str], inferences: int) -> None:
        for arm in self.arms:
            (self.folder / arm.experiment).mkdir(exist_ok=True)
            if "csv" in formats or "parquet" in formats:
                self.log(f"tables of {arm.run['run_id']}")
                self._write_tables(arm, formats)
            if "etdump" in formats:
                self._copy_traces(arm)
        if "etdump" in formats:
            self._copy_etrecord()
        statistics = {
            arm.run["run_id"]: summaries.latency_statistics(self.warehouse, arm) for arm in self.arms
        }
        comparison = self._comparison()
        self._write_latencies(formats, statistics, comparison)
        if "json" in formats or "markdown" in formats:
            self.log("summaries")
            self._write_summaries(formats, statistics, comparison)
        if "perfetto" in formats:
            self.log("trace")
            arms = [(arm.run, self.store.run_dir(arm.run["run_id"])) for arm in self.arms]
            path = self.folder / f"{self.arms[0].model_stem}{perfetto.SUFFIX}"
            perfetto.write_trace(path, self.warehouse, arms, inferences)

    def _table(self, arm: ExportedArm, name: str) -> pd.DataFrame:
        """A table of an arm; made only once."""
        key = (str(arm.run["run_id"]), name)
        if key not in self._made:
            self._made[key] = tables.TABLES[name](self.warehouse, arm.run, arm.prefix)
        return self._made[key]

    def _write_tables(self, arm: ExportedArm, formats: Sequence[str]) -> None:
        spill = {"memory_limit": MEMORY_LIMIT, "temp_directory": str(self.folder / ".spill")}
        with closing(self.warehouse.open_published(spill, [self.folder])) as connection:
            timeline = tables.timeline(connection, arm.run, arm.prefix)
            self._write_rows(arm, "exec_all_runs_timeline", timeline, formats)
            self._write_rows(arm, "exec_run0_timeline", timeline.filter("run_index = 0"), formats)
        with duckdb.connect() as connection:
            for name in tables.TABLES:
                self._write_rows(arm, name, connection.from_df(self._table(arm, name)), formats)

    def _write_rows(
        self, arm: ExportedArm, name: str, rows: duckdb.DuckDBPyRelation, formats: Sequence[str]
    ) -> None:
        base = f"{arm.experiment}/{arm.prefix}_{name}"
        kind = _KIT_KINDS.get(name, name)
        if "csv" in formats:
            write_csv(rows, self.folder / f"{base}.csv")
            arm.files[kind] = f"{base}.csv"
        if "parquet" in formats:
            rows.write_parquet(str(self.folder / f"{base}.parquet"), compression="zstd")
            arm.files[f"{kind}_parquet"] = f"{base}.parquet"

    def _copy_traces(self, arm: ExportedArm) -> None:
        """The traces of the etdump pass and the logs of their processes: the first under the kit's name, the
        others with their round."""
        source = self.store.run_dir(arm.run["run_id"])
        for number, trace in _traces(source, arm).items():
            name, at = arm.prefix, ""
            if number:
                name = f"{arm.model_stem}_{arm.experiment}_r{number:02d}_t{arm.threads}"
                at = f"_round_{number:02d}"
            for kind, path in (("etdump", trace), ("log", trace.with_name(LOG_FILE))):
                # A trace that was made elsewhere may have come without its log.
                if path.is_file():
                    arm.files[f"{kind}{at}"] = f"{arm.experiment}/{name}.{kind}"
                    shutil.copyfile(path, self.folder / arm.experiment / f"{name}.{kind}")

    def _copy_etrecord(self) -> None:
        """What ExecuTorch's Inspector reads beside a trace, if the program is still the one that was run."""
        run = self.arms[0].run
        made = None if run["experiment"] == FOREIGN else self.store.current("model", run["variant"])
        source = self.store.artifacts / "models" / str(run["variant"]) / str(made) / ETRECORD
        if made and source.is_file() and sha256_of_file(source.with_name(PTE)) == run["pte_sha256"]:
            self.etrecord = f"{self.arms[0].model_stem}.pte.etrecord"
            shutil.copyfile(source, self.folder / self.etrecord)

    def _write_latencies(
        self, formats: Sequence[str], statistics: dict[str, Any], comparison: pd.DataFrame
    ) -> None:
        """Times of each run, and of a pair side by side; of an emulated pair what it says without times."""
        timed = {arm: it for arm in self.arms if (it := statistics[arm.run["run_id"]]) is not None}
        by_state = {arm.run["sme2"]: arm for arm in self.arms if arm.run["experiment"] == "sme2"}
        off, on = by_state.get("off"), by_state.get("on")
        with duckdb.connect() as connection:
            if "csv" in formats:
                for arm, each in timed.items():
                    name = f"{arm.experiment}/{arm.prefix}_e2e_latency.csv"
                    write_csv(connection.from_df(pairs.e2e_latency(arm, each)), self.folder / name)
                    arm.files["e2e_latency"] = name
            if off is None or on is None:
                return
            if "csv" in formats:
                shares = {
                    name: dict(zip(rows["category"], rows["pct_total"], strict=True))
                    for name, rows in (
                        (pairs.OFF, self._table(off, "categories")),
                        (pairs.ON, self._table(on, "categories")),
                    )
                }
                work = work_of_session(self.warehouse, off.run["session_id"])
                for name, compared in (
                    ("comparison", pairs.category_comparison(comparison, shares)),
                    ("operators_comparison", pairs.operator_comparison(comparison)),
                    ("work_comparison", with_off_and_on(work)),
                ):
                    write_csv(connection.from_df(compared), self.folder / f"{off.model_stem}_{name}.csv")
        if "json" in formats and off in timed and on in timed:
            robust = pairs.robust_comparison(timed[off], timed[on], comparison)
            if robust is not None:
                write_json(self.folder / f"{off.model_stem}_robust_comparison.json", robust)

    def _write_summaries(
        self, formats: Sequence[str], statistics: dict[str, Any], comparison: pd.DataFrame
    ) -> None:
        stem = self.arms[0].model_stem
        if "json" in formats:
            for arm in self.arms:
                if (robust := statistics[arm.run["run_id"]]) is not None:
                    name = f"{arm.experiment}/{arm.prefix}_exec_all_runs_timeline_robust_stats.json"
                    write_json(self.folder / name, robust)
                    arm.files["robust_stats"] = name
        pipeline = summaries.pipeline_summary(
            self.arms, self.generated_at, statistics, comparison, self.config
        )
        if "markdown" in formats:
            categories = {arm.run["run_id"]: self._table(arm, "categories") for arm in self.arms}
            text = summaries.pipeline_markdown(pipeline, categories, self.arms)
            (self.folder / f"{stem}_pipeline_summary.md").write_text(text, encoding="utf-8")
        if "json" in formats:
            run_manifests = {
                arm.run["run_id"]: summaries.read_run_manifest(self.store.run_dir(arm.run["run_id"]))
                for arm in self.arms
            }
            kernels = {arm.run["run_id"]: self._table(arm, "kernels") for arm in self.arms}
            made = {
                "manifest.json": summaries.manifest(self.arms, self.generated_at, run_manifests, self.config),
                "metrics.json": summaries.metrics(self.arms, self.generated_at, statistics, kernels),
                "analysis_summary.json": summaries.analysis_summary(
                    self.warehouse, self.arms, self.generated_at, comparison, self.etrecord
                ),
                f"{stem}_pipeline_summary.json": pipeline,
            }
            for name, document in made.items():
                write_json(self.folder / name, document)

    def _comparison(self) -> pd.DataFrame:
        """What was found for this pair; empty for a single run, and before its comparison is made."""
        run = self.arms[0].run
        rows = self.warehouse.query(
            "SELECT *, coalesce(factor, 'aa') AS experiment FROM comparisons "
            "WHERE session_id = ? AND variant = ? AND platform = ? AND coalesce(factor, 'sme2') = 'sme2'",
            [run["session_id"], run["variant"], _text(run["platform"])],
        )
        return with_off_and_on(rows)


def _traces(folder: Path, arm: ExportedArm) -> dict[int, Path]:
    if not folder.is_dir():
        raise Sme2Error(
            f"The evidence of run {arm.run['run_id']} is gone: there is no folder {folder}.",
            "Leave out the formats etdump and perfetto; the tables come from the warehouse.",
        )
    verified = open_verified(folder)
    if isinstance(verified, ForeignFolder):
        return {0: verified.trace}
    return {each.facts.round: each.folder / TRACE_FILE for each in verified.processes("etdump")}


def _text(value: Any) -> str | None:
    return None if pd.isna(value) else str(value)
