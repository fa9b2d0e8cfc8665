"""The runner binary of each target."""

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from sme2_assets.defs.assets.support import clear_failures, content_version, device_to_measure_on, making
from sme2_assets.defs.partitions import pair_per_run, run_partitions, sessions_in, target_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.bundle import runner_for
from sme2_assets.runner.source_build import SourceRequest, build_source_runner, remember
from sme2_assets.targets import Target, TargetKey


@dg.asset(
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"cplusplus", "executorch"},
    code_version="1",
)
def runner_binary(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """The native `sme2_runner`, built from the ExecuTorch wheel's C++ SDK.

    Both SME2 states of a platform, and all models, use the same binary: off means that SME and SME2 are
    masked from the process, so nothing but SME2 differs between the arms. An unchanged source is not built
    again.
    """
    binaries = []
    with clear_failures():
        for (_, platform), states in sessions_in(context.partition_keys).items():
            # Any phone will do where none is asked for: they all get the same binary.
            device = device_to_measure_on(context) or ("any" if platform == "android" else None)
            target = lab.require(platform, states, device)
            keys = [TargetKey(platform, sme2) for sme2 in states]
            binaries.append(current_runner(lab, keys, target, context.log.info))
    return dg.MaterializeResult(
        metadata=runner_metadata(binaries[-1]), data_version=content_version(it.sha256 for it in binaries)
    )


def current_runner(
    lab: Lab, keys: Sequence[TargetKey], target: Target, log: Callable[[str], None]
) -> RunnerBinary:
    """The runner of these as its source is now; an existing build is reused."""
    with making(lab, log):
        binary = runner_for(target, lab.store, log=log)
        for key in keys:
            lab.store.set_current("runner", str(key), binary.path.parent.name)
    return binary


def runner_of_version(lab: Lab, target: Target, executorch: str, log: Callable[[str], None]) -> RunnerBinary:
    """The runner from the wheel of an ExecuTorch version, which is no target's current one."""
    with making(lab, log):
        return runner_for(target, lab.store, log=log, executorch=executorch)


def runner_metadata(binary: RunnerBinary) -> dict[str, Any]:
    """What the UI shows about a runner."""
    return {
        "path": dg.MetadataValue.path(str(binary.path)),
        "sha256": binary.sha256,
        "executorch": binary.executorch_version,
        "compiler": binary.compiler,
        "cmake": binary.cmake_version,
        "build seconds": binary.build_seconds,
        "from cache": binary.cached,
    }


class SourceBuildConfig(dg.Config):
    """Where the sources of a build are, and what it is for."""

    checkout: str = ""
    """The folder of an ExecuTorch clone with its submodules."""
    ndk: str = ""
    """The Android NDK; empty: $ANDROID_NDK and the like."""
    trace: bool = False
    """Whether XNNPACK logs its kernels. Such a build is kept apart and never measured."""


@dg.asset(
    partitions_def=target_partitions,
    backfill_policy=pair_per_run,
    group_name="build",
    kinds={"cplusplus", "executorch"},
    code_version="1",
)
def source_runner(
    context: dg.AssetExecutionContext, config: SourceBuildConfig, lab: Lab
) -> dg.MaterializeResult:
    """The runner built from an ExecuTorch checkout, with SME2 compiled in or left out.

    Both states of a platform are built by one run, from one state of the checkout, with presets that differ
    only in XNNPACK's SME switches. Each binary has its manifest: compiler, flags, commit, changes, hash.
    """
    shas = []
    with clear_failures(), making(lab, context.log.info):
        for key in context.partition_keys:
            target = TargetKey.parse(key)
            request = SourceRequest.of(
                config.checkout, target.platform, ndk=config.ndk or None, trace=config.trace
            )
            binary = build_source_runner(lab.store.artifacts, request, target.sme2, log=context.log.info)
            remember(lab.store, request, target.sme2, binary)
            shas.append(binary.sha256)
            context.add_asset_metadata(
                {
                    "path": dg.MetadataValue.path(str(binary.path)),
                    "sha256": binary.sha256,
                    "pair": binary.pair,
                    "executorch": binary.executorch_version,
                    "compiler": binary.compiler,
                    "build seconds": binary.build_seconds,
                    "from cache": binary.cached,
                    "trace": config.trace,
                },
                partition_key=key,
            )
    return dg.MaterializeResult(data_version=content_version(shas))
