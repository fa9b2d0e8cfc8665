"""The measurement itself: raw evidence of one profile run per partition."""

from dataclasses import fields
from datetime import datetime
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from sme2_assets.defs.assets.sessions import session_inputs
from sme2_assets.defs.assets.support import clear_failures, content_version, plotted
from sme2_assets.defs.partitions import SUBJECT_TAG, pair_per_run, run_key, run_partitions, sessions_in
from sme2_assets.defs.resources import Lab
from sme2_assets.evidence.digits import beside
from sme2_assets.evidence.manifest import Info, Manifest
from sme2_assets.profiling.arms import sme2_arms
from sme2_assets.profiling.plan import Plan, plan_for
from sme2_assets.profiling.requests import require_room
from sme2_assets.profiling.session import measure_session
from sme2_assets.report.tables import TextTable
from sme2_assets.store import Store
from sme2_assets.targets import Target, TargetKey
from sme2_assets.warehouse.shared import begin


class ProfileConfig(dg.Config):
    """How much to measure. An empty field means the platform's default."""

    threads: int = Field(1, description="Threads of the runner's pool.")
    rounds: int | None = Field(
        None,
        description="Exactly this many rounds. Default: 10 to 30 on hardware, as needed; 1 emulated.",
    )
    budget_s: float | None = Field(
        None, description="When to stop adding rounds, in seconds (120 on hardware)."
    )
    warmup: int | None = Field(
        None,
        description="Exactly this many warm-ups. Default: at least 10 and 0.3 s on hardware; 0 emulated.",
    )
    iterations: int | None = Field(
        None,
        description="Exactly this many timed inferences per process. Default: at least 10 and 0.2 s on "
        "hardware; 1 emulated.",
    )
    kernel_rounds: int | None = Field(
        None,
        description="Rounds that also sample which kernels run (2 for a pair on hardware, else 1; 0: none).",
    )
    runner: Literal["wheel", "source"] = Field(
        "wheel",
        description="wheel: the runner of runner_binary, SME2 masked for off. "
        "source: the pair of source_runner.",
    )
    device: str | None = Field(
        None,
        description="Another machine, as ssh://user@host:port; the serial of an Android device; a name or "
        "label:LABEL from the inventory; `any` for whichever is free; or an emulated CPU, as emulated:m4. "
        "Default: this machine; on android $ANDROID_SERIAL, else the only one connected; emulated:max.",
    )
    cpus: str = Field(
        "",
        description="CPUs to run on: a cluster (prime, performance, efficiency), a list such as 4-7, or a "
        "mask such as 0xf0. Empty: the system decides.",
    )
    qos: str = Field(
        "",
        description="macOS: quality of service of the runner's threads, user-interactive to background. "
        "Empty: the system decides.",
    )
    power: str = Field(
        "", description="Android: power mode during the session, boost or app. Empty: as it is."
    )
    timeout_s: float | None = Field(None, description="Limit for one runner process in seconds.")
    quiet_patience_s: float | None = Field(
        None, description="How long a session waits for a quiet machine, in seconds (20 on hardware)."
    )

    def plan_wishes(self) -> dict[str, Any]:
        """The fields that are for the plan."""
        return self.model_dump(include={field.name for field in fields(Plan)})


def place_of(config: ProfileConfig, lab: Lab, platform_name: str, states: list[str]) -> tuple[Target, Plan]:
    """Where a session is measured, and how; an error if it cannot be."""
    target = lab.require(platform_name, states, config.device)
    plan = plan_for(target.fidelity, paired=len(states) == 2, **config.plan_wishes())
    require_room(target, plan.threads, plan.cpus)
    return target, plan


@dg.asset(
    deps=["runner_binary", "exported_model"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"executorch"},
    code_version="1",
)
def etdump_traces(context: dg.AssetExecutionContext, config: ProfileConfig, lab: Lab) -> dg.MaterializeResult:
    """Latency results, ETDump traces, outputs and logs of a model on a target, with their manifest.

    Materialise both SME2 states of a platform together: they are then measured interleaved in one
    session, and only such a pair is ever compared. A state measured alone is a baseline.
    """
    store, log = lab.store, context.log.info
    sessions = sessions_in(context.partition_keys)
    subject = ", ".join(f"{variant} on {platform}" for variant, platform in sessions)
    context.instance.add_run_tags(context.run.run_id, {SUBJECT_TAG: subject})
    manifests: list[Manifest] = []
    with clear_failures():
        for (variant, platform), states in sessions.items():
            target, plan = place_of(config, lab, platform, states)
            model, runners = session_inputs(lab, variant, target, states, config.runner, context.log.debug)
            begin(store)
            manifests += measure_session(store, target, model, runners, sme2_arms(states), plan, log)
    for manifest in manifests:
        identity = manifest.identity
        context.add_asset_metadata(
            _run_metadata(store, manifest),
            partition_key=run_key(identity.variant, TargetKey(identity.platform, identity.sme2)),
        )
    return dg.MaterializeResult(data_version=content_version(manifest.run_id for manifest in manifests))


def _run_metadata(store: Store, manifest: Manifest) -> dict[str, dg.MetadataValue]:
    identity, context, info = manifest.identity, manifest.context, manifest.info
    rounds = len(info.environment) // 2
    facts = [
        ["device", f"{context.device} ({context.fidelity})"],
        ["CPU", f"{context.machine['cpu']} ({context.arch})"],
        ["SME2", identity.sme2],
        ["session", manifest.session_id + (" (both arms)" if manifest.paired else " (this arm alone)")],
        ["rounds x iterations", f"{rounds} x {info.plan['iterations']}"],
        ["warm-up steady", {True: "yes", False: "NO", None: "fixed warm-up"}[info.steady]],
        [
            "disturbances",
            _few(info.flags) or ("none: the machine was quiet" if info.watched else "not known"),
        ],
        ["outputs against eager", _agreement_text(info)],
    ]
    provenance = [
        ["SME vector bits", context.cpu["sme_vector_bits"]],
        ["features masked", ", ".join(context.cpu["features_masked"]) or "none"],
        ["threads", identity.threads],
        ["CPUs", identity.cpus or "not chosen"],
        ["power mode", _power_text(identity.power_mode, context.power)],
        ["ExecuTorch", info.versions.get("executorch")],
        ["runner", identity.runner_sha256[:16]],
        ["model file", identity.pte_sha256[:16]],
        ["machine load before, after", f"{context.load_before}, {context.load_after}"],
    ]
    seconds = datetime.fromisoformat(info.finished_at) - datetime.fromisoformat(info.started_at)
    return {
        "run": dg.MetadataValue.md(TextTable.of(["what", "value"], facts).markdown()),
        "provenance": dg.MetadataValue.md(TextTable.of(["what", "value"], provenance).markdown()),
        # Numbers on their own, so that the UI plots them over the runs.
        "rounds": dg.MetadataValue.int(rounds),
        "disturbed rounds": dg.MetadataValue.int(len({it.round for it in info.environment if it.flags})),
        **({} if info.sqnr_db is None else {"SQNR dB": plotted(info.sqnr_db)}),
        "session seconds": plotted(seconds.total_seconds()),
        "processes": dg.MetadataValue.int(len(info.processes)),
        "run_id": dg.MetadataValue.text(manifest.run_id),
        "session_id": dg.MetadataValue.text(manifest.session_id),
        "path": dg.MetadataValue.path(str(store.run_dir(manifest.run_id))),
    }


def _few(flags: list[str], most: int = 3) -> str:
    """The first few: the UI hides a long table behind a link. The table `environment` has all."""
    more = f"; and {len(flags) - most} more" if len(flags) > most else ""
    return "; ".join(flags[:most]) + more


def _power_text(mode: str, power: dict[str, Any]) -> str:
    if not mode:
        return "as it was"
    refused = [setting["name"] for setting in power.get("settings", []) if not setting["taken"]]
    return mode + (f" (did not take: {', '.join(refused)})" if refused else " (verified)")


def _agreement_text(info: Info) -> str:
    if info.sqnr_db is None:
        return "no eager model to compare with"
    reached = beside(info.sqnr_db, info.sqnr_threshold_db, 1)
    return info.wrong or f"{reached} dB (needed: {info.sqnr_threshold_db:g} dB)"
