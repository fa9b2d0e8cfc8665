"""A history of many runs, made fast: a few that went through the product's own ingest, and their files again
under other names.

What tells runs apart (session, sequence, date, variant, run id) is written anew for each of them; what is in
the other files does not matter to how a warehouse grows, so those are links. Every session has a commit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from sme2_assets.store import sha256_of_file
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.commits import TableFile, add_commit, files_now
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets_tests.made.run_folder import MadeRun, ingest

VARIANTS = 25
FIRST_NIGHT = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Template:
    """A session that was really taken in."""

    arms: tuple[MadeRun, ...]
    files: tuple[TableFile, ...]


class History:
    """A warehouse to which sessions are added: mostly pairs on hardware, some emulated, some of one arm."""

    def __init__(self, folder: Path, depth: int = 8, rounds: int = 6, iterations: int = 27) -> None:
        self.warehouse = Warehouse(folder / "warehouse")
        self._templates = Warehouse(folder / "templates")
        self._connection = duckdb.connect()
        self.runs = 0
        self._sessions = 0
        measured = MadeRun(depth=depth, rounds=rounds, iterations=iterations)
        emulated = replace(
            measured, platform="emulated", fidelity="emulated", session_id="20260102T000000-bbbbbb"
        )
        alone = replace(measured, session_id="20260103T000000-cccccc", paired=False)
        kinds = [
            *([replace(run, sme2=sme2) for sme2 in ("off", "on")] for run in (measured, emulated)),
            [alone],
        ]
        self._kinds = [self._template(folder / "runs", arms) for arms in kinds]
        self.evidence = folder / "runs"

    def _template(self, runs: Path, arms: list[MadeRun]) -> _Template:
        for arm in arms:
            ingest(self._templates, arm.write(runs))
        self._templates.publish()
        if len(arms) == 2:
            compare_session(self._templates, arms[0].session_id)
        ids = {arm.run_id for arm in arms} | {arms[0].session_id}
        files = [file for file in files_now(self._templates.tables) if ids & {*file.keys.values()}]
        return _Template(tuple(arms), tuple(files))

    def grow_to(self, runs: int) -> None:
        while self.runs < runs:
            self.add_session()

    def add_session(self) -> list[str]:
        """The run ids of one more."""
        number = self._sessions
        self._sessions += 1
        kind = self._kinds[{8: 1, 9: 2}.get(number // VARIANTS % 10, 0)]
        variant = f"model_{number % VARIANTS:02d}-fp32"
        begun = FIRST_NIGHT + timedelta(minutes=7 * number)
        session_id = f"{begun:%Y%m%dT%H%M%S}-{number:06d}.{variant}.{kind.arms[0].platform}"
        names = {arm.run_id: f"{session_id}-{arm.sme2}" for arm in kind.arms}
        names[kind.arms[0].session_id] = session_id
        names[kind.arms[0].variant] = variant
        files = [self._again(file, names, number, begun) for file in kind.files]
        ids = [names[arm.run_id] for arm in kind.arms]
        add_commit(self.warehouse.tables, files, ids)
        self.runs += len(ids)
        return ids

    def _again(self, file: TableFile, names: dict[str, str], number: int, begun: datetime) -> TableFile:
        keys = [f"{name}={names.get(value, value)}" for name, value in file.keys.items()]
        part = self.warehouse.tables / "/".join([file.table, *keys])
        part.mkdir(parents=True)
        source = self._templates.tables / file.path
        target = part / source.name
        if file.table not in ("runs", "comparisons"):
            os.link(source, target)
            return replace(file, path=str(target.relative_to(self.warehouse.tables)))
        if file.table == "runs":
            values = {
                "session_id": f"'{names[self._session_of(file)]}'",
                "sequence": f"{number + 1}::BIGINT",
                "started_at": f"'{begun.isoformat()}'::TIMESTAMPTZ",
                "model": f"'model_{number % VARIANTS:02d}'",
            }
        else:
            runs = {name: value for name, value in names.items() if "sme2_" in name}
            values = {
                f"{arm}_run_id": f"'{next(v for k, v in runs.items() if k.endswith(f'sme2_{arm}'))}'"
                for arm in ("off", "on")
            }
            values["model"] = f"'model_{number % VARIANTS:02d}'"
        changed = ", ".join(f"{value} AS {name}" for name, value in values.items())
        self._connection.execute(
            f"COPY (SELECT * REPLACE ({changed}) FROM read_parquet('{source}', hive_partitioning = false)) "
            f"TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
        )
        sha256 = sha256_of_file(target)
        named = target.rename(target.with_name(f"{sha256[:16]}.parquet"))
        return TableFile(str(named.relative_to(self.warehouse.tables)), sha256, file.columns)

    def _session_of(self, file: TableFile) -> str:
        [session] = {arm.session_id for kind in self._kinds for arm in kind.arms if arm.run_id == file.run_id}
        return session
