"""Blind trials as rows: judged by the times alone, as every session is, and then joined with the truth."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.statistics import paired_speedup, speedup_verdict
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.blind import TRIAL_FILE, Trial, revealed, trial_folders
from sme2_assets.store import Store
from sme2_assets.warehouse.comparisons import device_noise_floor
from sme2_assets.warehouse.schema import BLIND_TRIALS
from sme2_assets.warehouse.store import Warehouse

# What the rates of blind trials apply to.
_LIKE = ("device", "arch", "threads", "cpus", "power_mode")
# Counted from the trials themselves.
_TRIALS = "FROM blind_trials WHERE dose_percent = $dose AND " + " AND ".join(
    f"coalesce({name}::VARCHAR, '') = ${name}::VARCHAR" for name in _LIKE
)
FOUND = Claim(
    "of {dose:g} % in {slower} of {trials}",
    f"SELECT count(*) = $trials AND count(*) FILTER (verdict = 'slower') = $slower {_TRIALS}",
)
FALSE_ALARMS = Claim(
    "false alarms: {different} of {trials}",
    f"SELECT count(*) = $trials AND count(*) FILTER (verdict IN ('faster', 'slower')) = $different {_TRIALS}",
)


def write_blind_trials(store: Store, warehouse: Warehouse) -> dict[str, Sme2Error]:
    """Judges all trials of the data folder and stores them; returns those that cannot be read, and why."""
    rows, refused = [], {}
    for folder in trial_folders(store.blind):
        try:
            trial = Trial.read(folder / TRIAL_FILE)
            judged = _judged(warehouse, trial)
            rows.append({**judged, "dose_percent": revealed(folder, trial).dose_percent})
        except Sme2Error as error:
            refused[folder.name] = error
    # Trials that were removed lose their rows; a folder that never had any gets no table.
    if rows or refused or (warehouse.tables / BLIND_TRIALS.name).is_dir():
        warehouse.write(
            BLIND_TRIALS, pd.DataFrame(rows, columns=[column.name for column in BLIND_TRIALS.columns]), {}
        )
    return refused


def _judged(warehouse: Warehouse, trial: Trial) -> dict[str, Any]:
    facts = trial.model_dump()
    observed = paired_speedup(trial.a_ns, trial.b_ns)
    floor = device_noise_floor(warehouse, facts, until_then=True)
    # The ratio says how much slower the second arm is: above 1, as doses are.
    return {
        **{column.name: facts[column.name] for column in BLIND_TRIALS.columns if column.name in facts},
        "started_at": pd.Timestamp(trial.started_at),
        "ratio": 1 / observed.ratio,
        "ratio_low": None if observed.high is None else 1 / observed.high,
        "ratio_high": None if observed.low is None else 1 / observed.low,
        "single_process_ratio": trial.b_ns[0] / trial.a_ns[0],
        "n": observed.n,
        "noise_floor": floor,
        "verdict": speedup_verdict(observed, noise_floor=floor)[0],
    }


def blind_rates_text(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """What blind trials found on the run's device and settings; None if there were none."""
    values = ["" if pd.isna(run[name]) else run[name] for name in _LIKE]
    values[_LIKE.index("threads")] = int(run["threads"])
    rates = warehouse.query(
        "SELECT dose_percent, sum(trials) AS trials, sum(slower) AS slower, sum(different) AS different "
        f"FROM blind_rates WHERE {' AND '.join(f'{name} = ?' for name in _LIKE)} "
        "GROUP BY dose_percent ORDER BY dose_percent",
        values,
    )
    like = dict(zip(_LIKE, values, strict=True))
    found: list[str] = []
    alarms: list[str] = []
    for row in rates.itertuples():
        said, claim = (found, FOUND) if row.dose_percent > 0 else (alarms, FALSE_ALARMS)
        counts = {"slower": int(row.slower), "different": int(row.different), "trials": int(row.trials)}
        said.append(claim.say(**like, dose=row.dose_percent, **counts))
    parts = ["hidden slow-downs were found: " + ", ".join(found)] if found else []
    return "; ".join([*parts, *alarms]) or None
