"""Asset checks: what must hold for the numbers to mean what they say."""

from functools import partial
from itertools import product

import dagster as dg

from sme2_assets.errors import Sme2Error
from sme2_assets.partitions import (
    pair_partitions,
    parse_pair_key,
    parse_run_key,
    run_partitions,
    target_partitions,
)
from sme2_assets.profiling.manifest import Manifest
from sme2_assets.profiling.session import current_run_dir
from sme2_assets.resources import Lab
from sme2_assets.runner.source_build import current_source_runner, kernel_fault, record_faults
from sme2_assets.targets import TargetKey
from sme2_assets.warehouse.checks import (
    attribution_faults,
    conservation_faults,
    executed_kernel_faults,
    noise_faults,
    pair_faults,
    sme2_evidence_faults,
    unknown_operators,
)
from sme2_assets.warehouse.read import latest_run

run_check = partial(dg.asset_check, partitions_def=run_partitions)


@run_check(asset="etdump_traces", blocking=True)
def outputs_match_eager(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The runner's outputs are as near to the eager model as the precision must be."""
    faults: dict[str, str] = {}
    without_reference = []
    for key in _partition_keys(context):
        variant, target = parse_run_key(key)
        info = Manifest.read(current_run_dir(lab.store, variant, target.platform, target.sme2)).info
        if info.sqnr_db is None:
            without_reference.append(key)
        elif info.sqnr_db < info.sqnr_threshold_db:
            faults[key] = (
                f"{info.sqnr_db:.1f} dB against eager, {info.sqnr_threshold_db:.1f} dB needed"
                f"{_divergence_text(variant)}"
            )
    if without_reference:
        return _result(
            faults, "There is no eager model to compare with; the arms are compared with each other."
        )
    return _result(faults, "Outputs agree with the eager model.")


def _divergence_text(variant: str) -> str:
    """Where the outputs first go astray. Imports torch, so it is looked for only when they do."""
    from sme2_assets.models.divergence import first_divergence

    try:
        found = first_divergence(variant, log=lambda _: None)
    except Sme2Error as error:
        return f"; where they diverge could not be found: {error.what}"
    return f"; {found}" if found else "; no operator of the exported program diverges: look at the kernels"


@run_check(asset="timeline", blocking=True)
def every_nanosecond_accounted_for(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """Operators, delegate overhead and framework overhead add up to Method::execute in every inference."""
    return _result(
        _faults_of_runs(context, lab, conservation_faults), "Every inference adds up to the nanosecond."
    )


@run_check(asset="timeline", blocking=True)
def sme2_evidence_fits_the_state(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """With SME2 off no operator shows an SME2 kernel; with SME2 on one does, if any operator could."""
    return _result(_faults_of_runs(context, lab, sme2_evidence_faults), "SME2 evidence is where it must be.")


@run_check(asset="timeline")
def every_operator_known(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The categoriser knows every operator; unknown ones are counted as Other and named here."""
    return _result(
        _faults_of_runs(context, lab, unknown_operators),
        "Every operator has a known category.",
        severity=dg.AssetCheckSeverity.WARN,
    )


@run_check(asset="timeline")
def operators_attributed(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """Nearly every operator has one place in the model's code."""
    return _result(
        _faults_of_runs(context, lab, attribution_faults),
        "Nearly every operator has one place in the model.",
        severity=dg.AssetCheckSeverity.WARN,
    )


@run_check(asset="kernel_usage", blocking=True)
def sme2_kernels_executed(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """Sampled: with SME2 on, convolutions and products with SME2 names ran SME2 kernels; off, none did."""
    return _result(
        _faults_of_runs(context, lab, executed_kernel_faults),
        "What was sampled fits the SME2 state.",
    )


@run_check(asset="latency_summary")
def noise_within_bounds(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The rounds of a run on hardware agree with one another, and the machine was left alone."""
    return _result(
        _faults_of_runs(context, lab, noise_faults),
        "The rounds agree, and the machine was quiet.",
        severity=dg.AssetCheckSeverity.WARN,
    )


@run_check(asset="etdump_traces")
def warm_up_steady(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """Every process was steady before it was timed."""
    faults = {}
    for key in _partition_keys(context):
        variant, target = parse_run_key(key)
        info = Manifest.read(current_run_dir(lab.store, variant, target.platform, target.sme2)).info
        if info.steady is False:
            faults[key] = f"not steady after {info.plan['warmup_cap']} warm-up inferences"
    return _result(faults, "Every warm-up ended steady.", severity=dg.AssetCheckSeverity.WARN)


@dg.asset_check(asset="sme2_comparison", partitions_def=pair_partitions, blocking=True)
def arms_are_one_pair(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The compared runs were made together, differ in SME2 alone, and computed the same outputs."""
    faults = {}
    for key in _partition_keys(context):
        if fault := pair_faults(lab.warehouse, *parse_pair_key(key)):
            faults[key] = fault
    return _result(faults, "One session, one binary, one model file, and outputs that agree.")


@dg.asset_check(asset="regressions")
def no_regression(lab: Lab) -> dg.AssetCheckResult:
    """No series became slower, but for what has been acknowledged."""
    found = lab.warehouse.query("SELECT * FROM regressions WHERE NOT acknowledged")
    faults = {
        f"{row['variant']} on {row['platform']}, SME2 {row['sme2']}, {row['category']}": (
            f"{row['ratio']:.3f} times slower since {row['night']:%Y-%m-%d} (run {row['run_id']})"
        )
        for row in found.to_dict("records")
    }
    return _result(faults, "No series became slower.")


@dg.asset_check(asset="source_runner", partitions_def=target_partitions, blocking=True)
def source_pair_differs_in_sme_only(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The manifests of the two builds of a platform differ in XNNPACK's SME switches alone."""
    faults, pairs = {}, 0
    platforms = dict.fromkeys(TargetKey.parse(key).platform for key in _partition_keys(context))
    for platform, trace in product(platforms, (False, True)):
        on, off = (current_source_runner(lab.store, platform, sme2, trace=trace) for sme2 in ("on", "off"))
        if on is None or off is None:
            continue
        pairs += 1
        if found := record_faults(on, off):
            faults[f"{platform}{' trace' if trace else ''}"] = "; ".join(str(fault) for fault in found[:10])
    passed = "The two builds differ in the SME switches alone." if pairs else "Only one state is built yet."
    return _result(faults, passed)


@dg.asset_check(asset="source_runner", partitions_def=target_partitions, blocking=True)
def sme2_kernels_in_binary(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The binary with SME2 contains SME2 kernels, the one without contains no SME kernel that computes."""
    faults = {}
    for key, trace in product(_partition_keys(context), (False, True)):
        target = TargetKey.parse(key)
        binary = current_source_runner(lab.store, target.platform, target.sme2, trace=trace)
        if binary is not None and (fault := kernel_fault(binary, target.sme2)) is not None:
            faults[f"{key}{' trace' if trace else ''}"] = fault
    return _result(faults, "SME kernels are where they must be, and nowhere else.")


def _faults_of_runs(context, lab: Lab, find) -> dict[str, str]:  # type: ignore[no-untyped-def]
    """What `find` says of the newest run of each partition, where it says something."""
    faults = {}
    for key in _partition_keys(context):
        variant, target = parse_run_key(key)
        run = latest_run(lab.warehouse, variant, target.platform, target.sme2)
        if fault := find(lab.warehouse, run):
            faults[key] = fault
    return faults


def _partition_keys(context: dg.AssetCheckExecutionContext) -> list[str]:
    return list(context.op_execution_context.partition_keys)


def _result(
    faults: dict[str, str], passed: str, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> dg.AssetCheckResult:
    description = "; ".join(f"{key}: {fault}" for key, fault in faults.items()) or passed
    return dg.AssetCheckResult(passed=not faults, severity=severity, description=description, metadata=faults)
