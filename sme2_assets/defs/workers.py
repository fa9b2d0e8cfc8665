"""Dagster runs on other machines: Celery hands each run to the worker whose queue it is in.

Belongs here: the run launcher that the `dagster.yaml` of a deployment names, and the Celery app that
`sme2 worker` serves. Imported only there: a single machine needs neither Celery nor a broker.
"""

from __future__ import annotations

import os
from typing import Any

import dagster as dg
from celery import Celery
from dagster_celery.launcher import CeleryRunLauncher, CheckRunHealthResult, WorkerStatus
from dagster_celery.make_app import make_app
from dagster_celery.tags import DAGSTER_CELERY_TASK_ID_TAG
from dagster_celery.tasks import create_execute_job_task

from sme2_assets.errors import Sme2Error

BROKER_VARIABLE = "SME2_BROKER"
# How long a worker may take to say what it is doing. Its main process answers while others measure.
PATIENCE_S = 10.0


class WorkerRunLauncher(CeleryRunLauncher):
    """Starts each run as a Celery task, and knows when its worker is gone.

    Celery's state of a task is what its worker said last: it stays "started" for ever if the machine went
    down. So the worker itself is asked. One that was restarted answers too, but does not list that task.
    """

    def _launch_celery_task_run(self, run: dg.DagsterRun, task_signature: Any, routing_key: str) -> None:
        # With the run's id: a retry has the tags of the run before it, including the id of that task.
        super()._launch_celery_task_run(run, task_signature.set(task_id=run.run_id), routing_key)

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        if DAGSTER_CELERY_TASK_ID_TAG not in run.tags:
            # Started by a command line: its health is unknown, and `max_runtime_seconds` ends it.
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        result = self.celery.AsyncResult(run.run_id)
        state, facts = result.state, result.info
        if state != "STARTED":
            status = {"SUCCESS": WorkerStatus.SUCCESS}.get(state, WorkerStatus.FAILED)
            return CheckRunHealthResult(status, f"The Celery task is in the state {state}.")
        worker = facts["hostname"]
        inspect = self.celery.control.inspect(destination=[worker], timeout=PATIENCE_S)
        active = (inspect.active() or {}).get(worker)
        if active is not None and any(task["id"] == run.run_id for task in active):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        if result.state != "STARTED":
            # It ended while the worker was asked; the next check sees how.
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        gone = "does not answer" if active is None else "was restarted and does not know the run"
        return CheckRunHealthResult(WorkerStatus.FAILED, f"The worker {worker} {gone}.")


def worker_app() -> Celery:
    """What a worker serves, with the broker of `dagster.yaml`."""
    broker = os.environ.get(BROKER_VARIABLE)
    if not broker:
        raise Sme2Error(
            f"{BROKER_VARIABLE} is not set.", "Set it to the address of the broker, e.g. redis://lab:6379/0."
        )
    app = make_app({"broker": broker, "backend": broker})
    app.conf.update(
        # A run that waits behind another must stay free for the next worker.
        worker_prefetch_multiplier=1,
        # Keeps the state of a task for as long as anyone may ask for it.
        result_expires=7 * 24 * 3600,
        broker_connection_retry_on_startup=True,
    )
    create_execute_job_task(app)
    return app
