"""The runner binary of each target."""

import dagster as dg

from sme2_assets.assets.support import clear_failures
from sme2_assets.partitions import pair_per_run, target_partitions
from sme2_assets.resources import Lab
from sme2_assets.runner.build import build_runner
from sme2_assets.targets import TargetKey


@dg.asset(
    partitions_def=target_partitions,
    backfill_policy=pair_per_run,
    group_name="build",
    kinds={"cplusplus", "executorch"},
    code_version="1",
    pool="host_cpu",
)
def runner_binary(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """The native `sme2_runner`, built from the ExecuTorch wheel's C++ SDK.

    Both SME2 states of a platform use the same binary: off means that SME and SME2 are masked from the
    process, so nothing but SME2 differs between the arms. An unchanged source is not built again.
    """
    with clear_failures():
        targets = [TargetKey.parse(key) for key in context.partition_keys]
        for target in targets:
            lab.target(target.platform).require(target.sme2)
        binary = build_runner(lab.store.artifacts, log=context.log.info)
        for target in targets:
            lab.store.set_current("runner", str(target), binary.path.parent.name)
    return dg.MaterializeResult(
        metadata={
            "path": dg.MetadataValue.path(str(binary.path)),
            "sha256": binary.sha256,
            "executorch": binary.executorch_version,
            "compiler": binary.compiler,
            "cmake": binary.cmake_version,
            "build seconds": binary.build_seconds,
            "from cache": binary.cached,
        },
        data_version=dg.DataVersion(binary.sha256[:16]),
    )
