"""The measurement itself: raw evidence of one profile run per partition."""

import dagster as dg
from pydantic import Field

from sme2_assets.assets.support import clear_failures
from sme2_assets.errors import Sme2Error
from sme2_assets.models.artifact import ExportedModel, load_exported
from sme2_assets.partitions import pair_per_run, run_key, run_partitions, sessions_in
from sme2_assets.profiling.manifest import Info, Manifest
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.session import measure_session, sme2_arms
from sme2_assets.report.tables import TextTable
from sme2_assets.resources import Lab
from sme2_assets.runner.build import RunnerBinary, load_runner
from sme2_assets.store import Store, sha256_of_text
from sme2_assets.targets import TargetKey


class ProfileConfig(dg.Config):
    """How much to measure. What is left empty is the platform's default."""

    threads: int = Field(1, description="Threads of the runner's pool.")
    rounds: int | None = Field(
        None,
        description="Exactly so many rounds. Default: 10 to 30 on hardware, as needed; 1 emulated.",
    )
    budget_s: float | None = Field(
        None, description="When to stop adding rounds, in seconds (120 on hardware)."
    )
    warmup: int | None = Field(
        None,
        description="Exactly so many warm-ups. Default: 5 to 100 on hardware, until steady; 0 emulated.",
    )
    iterations: int | None = Field(
        None, description="Timed inferences per process (20 on hardware, 1 emulated)."
    )
    kernel_rounds: int | None = Field(
        None, description="Rounds that also sample which kernels run (2 on hardware, 1 emulated; 0: none)."
    )
    timeout_s: float | None = Field(None, description="Limit for one runner process in seconds.")
    quiet_patience_s: float | None = Field(
        None, description="How long a session waits for a quiet machine, in seconds (20 on hardware)."
    )


@dg.asset(
    deps=["runner_binary", "exported_model"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"executorch"},
    code_version="1",
    pool="host_cpu",
)
def etdump_traces(context: dg.AssetExecutionContext, config: ProfileConfig, lab: Lab) -> dg.MaterializeResult:
    """Latency results, ETDump traces, outputs and logs of a model on a target, with their manifest.

    Materialise both SME2 states of a platform together: they are then measured interleaved in one
    session, and only such a pair is ever compared. A state measured alone is a baseline.
    """
    store = lab.store
    manifests: list[Manifest] = []
    with clear_failures():
        for (variant, platform_name), states in sessions_in(context.partition_keys).items():
            target = lab.target(platform_name)
            for sme2 in states:
                target.require(sme2)
            model, runner = inputs_of_session(store, variant, platform_name, states)
            manifests += measure_session(
                store,
                target,
                model,
                runner,
                sme2_arms(states),
                plan_for(target.fidelity, paired=len(states) == 2, **config.model_dump()),
                log=context.log.info,
            )
    for manifest in manifests:
        identity = manifest.identity
        context.add_asset_metadata(
            _run_metadata(store, manifest),
            partition_key=run_key(identity.variant, TargetKey(identity.platform, identity.sme2)),
        )
    return dg.MaterializeResult(
        data_version=dg.DataVersion(sha256_of_text(*(manifest.run_id for manifest in manifests))[:16])
    )


def inputs_of_session(
    store: Store, variant: str, platform_name: str, states: list[str]
) -> tuple[ExportedModel, RunnerBinary]:
    """The current model file and runner of a session."""
    model_key = store.require_current("model", variant, "exported_model")
    model = load_exported(store.artifacts / "models" / variant / model_key)
    return model, _runner_of(store, [TargetKey(platform_name, sme2) for sme2 in states])


def _runner_of(store: Store, targets: list[TargetKey]) -> RunnerBinary:
    """The runner of the targets, which must be one: arms with different binaries are no experiment."""
    names = {store.require_current("runner", str(target), "runner_binary") for target in targets}
    if len(names) != 1:
        raise Sme2Error(
            f"{' and '.join(str(target) for target in targets)} have different runner binaries.",
            "Materialise runner_binary for both of them.",
        )
    return load_runner(store.artifacts / "runners" / names.pop())


def _run_metadata(store: Store, manifest: Manifest) -> dict[str, dg.MetadataValue]:
    identity, context, info = manifest.identity, manifest.context, manifest.info
    facts = [
        ["session", manifest.session_id + (" (both arms)" if manifest.paired else " (this arm alone)")],
        ["SME2", identity.sme2],
        ["CPU", context.machine["cpu"]],
        ["fidelity", context.fidelity],
        ["SME vector bits", context.cpu["sme_vector_bits"]],
        ["features masked", ", ".join(context.cpu["features_masked"]) or "none"],
        ["rounds x iterations", f"{len(info.environment) // 2} x {info.plan['iterations']}"],
        ["warm-up steady", {True: "yes", False: "NO", None: "fixed warm-up"}[info.steady]],
        ["machine", "; ".join(info.flags) or "quiet"],
        ["threads", identity.threads],
        ["ExecuTorch", info.versions.get("executorch")],
        ["runner", identity.runner_sha256[:16]],
        ["model file", identity.pte_sha256[:16]],
        ["outputs against eager", _agreement_text(info)],
        ["machine load before, after", f"{context.load_before}, {context.load_after}"],
    ]
    return {
        "run_id": dg.MetadataValue.text(manifest.run_id),
        "session_id": dg.MetadataValue.text(manifest.session_id),
        "path": dg.MetadataValue.path(str(store.run_dir(manifest.run_id))),
        "run": dg.MetadataValue.md(TextTable.of(["what", "value"], facts).markdown()),
        "processes": dg.MetadataValue.int(len(info.processes)),
        **({} if info.sqnr_db is None else {"sqnr_db": dg.MetadataValue.float(info.sqnr_db)}),
    }


def _agreement_text(info: Info) -> str:
    if info.sqnr_db is None:
        return "no eager model to compare with"
    return f"{info.sqnr_db:.1f} dB (needed: {info.sqnr_threshold_db:.0f} dB)"
