"""Assets that measure: one step makes sure of the runner and the model, the next one measures with them.

Belongs here: what a session takes, and how such an asset is put together. Does not: what is measured.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import dagster as dg

from sme2_assets.defs.assets.models import current_export, model_metadata
from sme2_assets.defs.assets.runners import current_runner, runner_metadata
from sme2_assets.defs.assets.support import tell_made
from sme2_assets.defs.loggers import INPUTS_STEP
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.heartbeat import heartbeat
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.source_build import source_pair
from sme2_assets.targets import Target, TargetKey
from sme2_assets.warehouse import checks
from sme2_assets.warehouse.read import runs_of_session
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.shared import give

# Not `source_runner`: few sessions use one, and a new pair does not make the others out of date.
_INPUTS = ("runner_binary", "exported_model")
_MEASURE_STEP = "measure"


def measuring(
    make_inputs: Callable[..., None],
    config: type[dg.Config],
    partition_mapping: dg.PartitionMapping | None = None,
    **settings: Any,
) -> Callable[[Callable[..., dg.MaterializeResult]], dg.AssetsDefinition]:
    """`dg.asset` for a function that measures; `make_inputs` is a step before it, with the same settings.

    Dagster notes which versions of its inputs a step has when the step begins. Made by the step that
    measures, they would be newer than what it noted, and the measurement out of date at once.
    """

    def asset_of(measure: Callable[..., dg.MaterializeResult]) -> dg.AssetsDefinition:
        name = measure.__name__
        nothing = dg.Out(dg.Nothing)
        first = dg.op(
            name=f"{name}_{INPUTS_STEP}", ins=dict.fromkeys(_INPUTS, dg.In(dg.Nothing)), out=nothing
        )(make_inputs).alias(INPUTS_STEP)
        then = dg.op(name=f"{name}_{_MEASURE_STEP}", ins={"inputs": dg.In(dg.Nothing)}, out=nothing)(
            measure
        ).alias(_MEASURE_STEP)

        def steps(runner_binary: Any, exported_model: Any) -> Any:
            return then(first(runner_binary=runner_binary, exported_model=exported_model))

        return dg.graph_asset(
            name=name,
            description=inspect.getdoc(measure),
            ins={
                it: dg.AssetIn(dagster_type=dg.Nothing, partition_mapping=partition_mapping) for it in _INPUTS
            },
            config=dg.ConfigMapping(
                lambda given: {step: {"config": given} for step in (INPUTS_STEP, _MEASURE_STEP)},
                config_schema=config.to_config_schema(),
            ),
            **settings,
        )(steps)

    return asset_of


def inputs_of_session(
    context: dg.AssetExecutionContext,
    lab: Lab,
    variant: str,
    target: Target,
    states: list[str],
    kind: str,
    log: Callable[[str], None],
) -> tuple[ExportedModel, dict[str, RunnerBinary]]:
    """The model file of a session, and the runner of each state, from the wheel or from source.

    What is missing or out of date is made here, so that a measurement needs only one run, and a broken
    export fails only the runs that need it. It is reported as a materialisation of its own asset. Both arms
    use the same runner from the wheel.
    """
    model = current_export(lab, variant, log)
    tell_made(context, "exported_model", variant, model.pte_sha256[:16], lambda: model_metadata(model))
    if kind == "source":
        pair = source_pair(lab.store, target.platform)
        return model, {sme2: pair.of(sme2) for sme2 in states}
    keys = [TargetKey(target.platform, sme2) for sme2 in states]
    binary = current_runner(lab, keys, target, log)
    for key in keys:
        tell_made(context, "runner_binary", str(key), binary.sha256[:16], partial(runner_metadata, binary))
    return model, dict.fromkeys(states, binary)


def take_checked(lab: Lab, manifests: list[Manifest], log: Callable[[str], None]) -> str:
    """Makes rows of a session and returns its id; an error if they show that it is not to be relied on.

    For sessions that are no partitions: of those, assets of their own make the rows, and have these checks.
    """
    warehouse, session_id = lab.warehouse, manifests[0].session_id
    give(lab.store, log)
    with heartbeat(log, "making rows of what was measured"):
        take_session(lab.store, warehouse, lab.store.run_dir(manifests[0].run_id))
        warehouse.publish()
    for run in runs_of_session(warehouse, session_id):
        for look in (
            checks.conservation_faults,
            checks.sme2_evidence_faults,
            checks.executed_kernel_faults,
        ):
            if fault := look(warehouse, run):
                raise Sme2Error(f"{run['run_id']} is not to be relied on: {fault}", "Measure again.")
    return session_id
