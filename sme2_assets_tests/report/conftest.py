from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from sme2_assets.report.content import session_document
from sme2_assets.report.document import Document
from sme2_assets.report.html import html_of
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.claims.zoo import zoo
from sme2_assets_tests.made import MadeOnce
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.conftest import paired, warehouse
from sme2_assets_tests.warehouse.newest import compare_newest, newest_session

__all__ = ["documents", "pages", "paired", "warehouse", "zoo"]

VARIANT = "toy_cnn-fp32"


# One warehouse of what `paired` has not: the first two prove nothing, the others differ in their times alone.
UNCLEAR = {
    "few-fp32": MadeRun(rounds=2, iterations=1),
    "wrong-fp32": MadeRun(sqnr_db=12.0, rounds=2, iterations=1),
    "slow-fp32": MadeRun(platform="emulated", fidelity="emulated", rounds=1, matrix_speedup=0.2),
    "fast-fp32": MadeRun(platform="emulated", fidelity="emulated", rounds=1, matrix_speedup=9.0),
}


@pytest.fixture(scope="session")
def documents(paired: Warehouse, made_once: MadeOnce) -> dict[str, Document]:
    """A report of each kind: what can be said differs, and so does what must not be."""

    def make(folder: Path) -> None:
        (folder / "documents.pickle").write_bytes(pickle.dumps(make_documents(paired, folder)))

    return pickle.loads((made_once("documents", make) / "documents.pickle").read_bytes())


def make_documents(paired: Warehouse, folder: Path) -> dict[str, Document]:
    unclear = Warehouse(folder / "warehouse")
    arms = [
        replace(run, variant=variant, sme2=sme2) for variant, run in UNCLEAR.items() for sme2 in ("off", "on")
    ]
    ingest(unclear, *(arm.write(folder / "runs") for arm in arms))
    unclear.publish()
    for variant, run in UNCLEAR.items():
        compare_newest(unclear, variant, run.platform)
    unclear.publish()
    alone = Warehouse(folder / "alone" / "warehouse")
    ingest(alone, MadeRun().write(folder / "alone" / "runs"))
    alone.publish()
    made = {
        variant.removesuffix("-fp32"): session_document(
            unclear, newest_session(unclear, variant, run.platform)
        )
        for variant, run in UNCLEAR.items()
    }
    return {
        "faster": session_document(paired, newest_session(paired, VARIANT, "linux")),
        "baseline": session_document(alone, newest_session(alone, VARIANT, "linux")),
        "emulated": made["slow"],
        **made,
    }


@pytest.fixture(scope="session")
def pages(documents: dict[str, Document]) -> dict[str, str]:
    made = {name: html_of(document) for name, document in documents.items() if name != "emulated"}
    return {**made, "emulated": made["slow"]}
