"""Sessions, whatever their arms differ in: what one takes, and what is made of one that is no partition.

Belongs here: the steps that all assets that measure share. Does not: which arms each of them measures.
"""

from collections.abc import Callable, Iterable, Sequence

from sme2_assets.defs.assets.models import current_export
from sme2_assets.defs.assets.runners import current_runner
from sme2_assets.defs.checks import output_faults
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.heartbeat import heartbeat
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.pairs import source_pair
from sme2_assets.targets import Target, TargetKey
from sme2_assets.warehouse import checks
from sme2_assets.warehouse.read import runs_of_session
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.shared import give


def session_inputs(
    lab: Lab, variant: str, target: Target, states: Sequence[str], kind: str, log: Callable[[str], None]
) -> tuple[ExportedModel, dict[str, RunnerBinary]]:
    """The model file of a session, and the runner of each state: the wheel's for both, or a pair from source.

    What is current is there at once. It is made here only if a session is measured without its assets.
    """
    model = current_export(lab, variant, log)
    if kind == "source":
        pair = source_pair(lab.store, target.platform)
        return model, {sme2: pair[sme2] for sme2 in states}
    keys = [TargetKey(target.platform, sme2) for sme2 in states]
    return model, dict.fromkeys(states, current_runner(lab, keys, target, log))


def take_rows(lab: Lab, run_ids: Iterable[str], log: Callable[[str], None]) -> None:
    """Makes rows of the sessions of these runs, all arms of each together, and publishes them."""
    # Not part of measuring: a store that does not answer must not cost a measurement.
    give(lab.store, log)
    with heartbeat(log, "making rows of what was measured"):
        taken: set[str] = set()
        for run_id in run_ids:
            if run_id not in taken:
                taken.update(take_session(lab.store, lab.warehouse, lab.store.run_dir(run_id)))
        lab.warehouse.publish()


def take_checked(lab: Lab, manifests: Sequence[Manifest], log: Callable[[str], None]) -> str:
    """Makes rows of a session that is no partition and returns its id; an error if it is not to be relied on.

    The rows of partitions are assets of their own, which have these checks.
    """
    take_rows(lab, [manifests[0].run_id], log)
    session_id = manifests[0].session_id
    for manifest in manifests:
        if fault := output_faults(lab, manifest.run_id):
            variant = manifest.identity.variant
            raise Sme2Error(
                f"The outputs of {variant} are wrong, {fault}",
                f"`sme2 check-model {variant}` finds the operator.",
            )
    for run in runs_of_session(lab.warehouse, session_id):
        for look in (
            checks.conservation_faults,
            checks.sme2_evidence_faults,
            checks.executed_kernel_faults,
        ):
            if fault := look(lab.warehouse, run):
                raise Sme2Error(f"{run['run_id']} is not to be relied on: {fault}", "Measure again.")
    return session_id
