"""Asset checks: what must hold for the numbers to mean what they say.

A check is about the partitions of the run that evaluated it last, and names them. It is not partitioned: of a
run with a pair, Dagster would plan one evaluation for each partition and keep one for none, so that its list
of checks calls skipped what the page of the check calls passed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from sme2_assets.defs.assets.support import materialised, runs_of
from sme2_assets.defs.partitions import MOST_PER_RUN
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.report.night import others_text, series_text
from sme2_assets.report.tables import work_step_text
from sme2_assets.runner.pairs import current_source_runner, kernel_fault, record_faults
from sme2_assets.targets import SME2_STATES, TargetKey
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import (
    attribution_faults,
    conservation_faults,
    executed_kernel_faults,
    noise_faults,
    pair_faults,
    passes_faults,
    sme2_evidence_faults,
    unknown_operators,
    work_faults,
)
from sme2_assets.warehouse.history import WORK, no_slow_down_text
from sme2_assets.warehouse.read import run_of_id
from sme2_assets.warehouse.rebuild import runs_in_no_table

Fault = str | None
# What is wrong with a run that the checked asset made.
FindFault = Callable[[Lab, str], Fault]


@dataclass(frozen=True)
class _RunCheck:
    """A check of a run. `find` returns what is wrong with it; `passed` is the text if nothing is."""

    asset: str
    name: str
    description: str
    find: FindFault
    passed: str
    # A failure stops what follows; a warning does not.
    blocking: bool = False


def _checks_of(step: str, *checks: _RunCheck) -> dg.AssetChecksDefinition:
    """All checks of what a step makes, as one step: separate ones would cost more than the checks."""

    @dg.multi_asset_check(
        name=f"checks_of_{step}",
        specs=[
            dg.AssetCheckSpec(
                check.name,
                asset=check.asset,
                description=check.description,
                blocking=check.blocking,
            )
            for check in checks
        ],
        can_subset=True,
    )
    def evaluated(context: dg.AssetCheckExecutionContext, lab: Lab) -> Iterator[dg.AssetCheckResult]:
        for check in checks:
            if (
                dg.AssetCheckKey(dg.AssetKey(check.asset), check.name)
                not in context.selected_asset_check_keys
            ):
                continue
            keys = _partition_keys(context, check.asset)
            run_ids = runs_of(context.op_execution_context, check.asset, keys)
            faults = {}
            for key, run_id in run_ids.items():
                if fault := check.find(lab, run_id):
                    faults[key] = fault
            severity = dg.AssetCheckSeverity.ERROR if check.blocking else dg.AssetCheckSeverity.WARN
            yield _result(
                faults, check.passed, severity, checked=run_ids, check_name=check.name, asset_key=check.asset
            )

    return evaluated


def output_faults(lab: Lab, run_id: str) -> Fault:
    manifest = RunFolder.open(lab.store.run_dir(run_id)).manifest
    info = manifest.info
    # A finished program has no eager model; its arms are compared with each other.
    if info.wrong is None:
        return None
    return f"against eager: {info.wrong}{_divergence_text(manifest.identity.variant)}"


def _divergence_text(variant: str) -> str:
    """Where the outputs first diverge. Imports torch, so it is called only when they do."""
    from sme2_assets.models.differences.in_torch import first_divergence

    try:
        found = first_divergence(variant, log=lambda _: None)
    except Sme2Error as error:
        return f"; where they diverge could not be found: {error.what}"
    if found is not None:
        return f"; {found}"
    return f"; in torch no operator was found: `sme2 check-model {variant}` looks in the lowered program"


def _warm_up(lab: Lab, run_id: str) -> Fault:
    info = RunFolder.open(lab.store.run_dir(run_id)).manifest.info
    if info.steady is not False:
        return None
    return "more than one process in ten was still changing its speed when its warm-up ended"


def _in_warehouse(find: Callable[[Warehouse, dict[str, Any]], Fault]) -> FindFault:
    def of_run(lab: Lab, run_id: str) -> Fault:
        return find(lab.warehouse, run_of_id(lab.warehouse, run_id))

    return of_run


of_traces = _checks_of(
    "traces",
    _RunCheck(
        "etdump_traces",
        "outputs_match_eager",
        "The runner's outputs are as close to the eager model as the precision demands. A finished program "
        "has no such model: its arms are compared with each other.",
        output_faults,
        "Outputs agree with the eager model, where there is one.",
        blocking=True,
    ),
    _RunCheck(
        "etdump_traces",
        "warm_up_steady",
        "Nearly every process was steady before it was timed.",
        _warm_up,
        "Nearly every warm-up ended steady.",
    ),
)
of_rows = _checks_of(
    "rows",
    _RunCheck(
        "timeline",
        "every_nanosecond_accounted_for",
        "Operators, delegate overhead and framework overhead add up to Method::execute in every inference.",
        _in_warehouse(conservation_faults),
        "Every inference adds up to the nanosecond.",
        blocking=True,
    ),
    _RunCheck(
        "timeline",
        "sme2_evidence_fits_the_state",
        "With SME2 off no operator shows an SME2 kernel; with SME2 on one does, if any operator could.",
        _in_warehouse(sme2_evidence_faults),
        "SME2 evidence is where it must be.",
        blocking=True,
    ),
    _RunCheck(
        "category_summary",
        "every_operator_known",
        "The categoriser knows every operator; unknown ones are counted as Other and named here.",
        _in_warehouse(unknown_operators),
        "Every operator has a known category.",
    ),
    _RunCheck(
        "timeline",
        "operators_attributed",
        "Nearly every operator has one place in the model's code.",
        _in_warehouse(attribution_faults),
        "Nearly every operator has one place in the model.",
    ),
    _RunCheck(
        "timeline",
        "noise_within_bounds",
        "The rounds of a native run agree with one another, and the machine was left alone.",
        _in_warehouse(noise_faults),
        "The rounds agree, and nothing is known to have disturbed them.",
    ),
    _RunCheck(
        "timeline",
        "passes_agree",
        "Tracing and sampling cost time: no traced or sampled inferences of a native run are faster than "
        "untraced ones.",
        _in_warehouse(passes_faults),
        "The passes show the same speed, as far as their rounds can tell.",
    ),
    _RunCheck(
        "kernel_evidence",
        "sme2_kernels_executed",
        "Sampled or counted: with SME2 on, convolutions and products with SME2 names ran SME2 kernels; off, "
        "none did.",
        _in_warehouse(executed_kernel_faults),
        "What ran fits the SME2 state.",
        blocking=True,
    ),
    _RunCheck(
        "kernel_evidence",
        "work_adds_up",
        "Counted under emulation: each convolution and product does the multiply-accumulates of the model, "
        "and no more than tiles that are not full explain.",
        _in_warehouse(work_faults),
        "The work counted is that of the model, or none was counted.",
    ),
)


@dg.asset_check(asset="sme2_comparison", blocking=True)
def arms_are_one_pair(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The compared runs were made together, differ only in SME2, and computed the same outputs."""
    faults = {}
    keys = _partition_keys(context, "sme2_comparison")
    for key in keys:
        compared = [
            materialised(context.op_execution_context, "sme2_comparison", key, f"{sme2}_run_id")
            for sme2 in SME2_STATES
        ]
        if fault := pair_faults(lab.warehouse, *compared):
            faults[key] = fault
    return _result(faults, "One session, one binary, one model file, and outputs that agree.", checked=keys)


@dg.asset_check(asset="overview")
def every_run_is_in_the_warehouse(lab: Lab) -> dg.AssetCheckResult:
    """Every run folder is in the tables: everything that was measured is also shown."""
    missing = {
        path.name: "it is in no table; `sme2 warehouse sync` adds it" for path in runs_in_no_table(lab.store)
    }
    return _result(missing, "Every run folder is in the tables.", dg.AssetCheckSeverity.WARN)


@dg.asset_check(asset="regressions")
def no_regression(lab: Lab) -> dg.AssetCheckResult:
    """No slow-down and no step to more work was found except acknowledged ones; says what could have been."""
    found = lab.warehouse.query("SELECT * FROM regressions WHERE NOT acknowledged")
    faults = {
        series_text(row): (
            (work_step_text(row) if row["category"] == WORK else f"{row['ratio']:.3f} times slower")
            + f" since {row['night']:%Y-%m-%d} (run {row['run_id']}){others_text(row)}"
        )
        for row in found.to_dict("records")
    }
    acknowledged = len(lab.warehouse.query("SELECT 1 FROM regressions WHERE acknowledged"))
    return _result(
        faults,
        f"Everything that was found is acknowledged: {acknowledged}."
        if acknowledged
        else no_slow_down_text(lab.warehouse),
    )


@dg.asset_check(asset="source_runner", blocking=True)
def source_pair_differs_in_sme_only(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The manifests of the two builds of a platform differ only in XNNPACK's SME switches."""
    faults, pairs = {}, 0
    keys = _partition_keys(context, "source_runner")
    for platform, trace in dict.fromkeys(
        (TargetKey.parse(key).platform, _is_trace(context, key)) for key in keys
    ):
        on, off = (current_source_runner(lab.store, platform, sme2, trace=trace) for sme2 in ("on", "off"))
        if on is None or off is None:
            continue
        pairs += 1
        if found := record_faults(on, off):
            faults[platform] = "; ".join(found[:10])
    passed = "The two builds differ in the SME switches alone." if pairs else "Only one state is built yet."
    return _result(faults, passed, checked=keys)


@dg.asset_check(asset="source_runner", blocking=True)
def sme2_kernels_in_binary(context: dg.AssetCheckExecutionContext, lab: Lab) -> dg.AssetCheckResult:
    """The binary with SME2 contains SME2 kernels, the one without contains no SME kernel that computes."""
    faults = {}
    keys = _partition_keys(context, "source_runner")
    for key in keys:
        target, trace = TargetKey.parse(key), _is_trace(context, key)
        binary = current_source_runner(lab.store, target.platform, target.sme2, trace=trace)
        if binary is not None and (fault := kernel_fault(binary, target.sme2)) is not None:
            faults[key] = fault
    return _result(faults, "SME kernels are where they must be, and nowhere else.", checked=keys)


def _is_trace(context: dg.AssetCheckExecutionContext, key: str) -> bool:
    """Whether the runner that was built for a partition logs its kernels."""
    return materialised(context.op_execution_context, "source_runner", key, "trace") == "True"


def _partition_keys(context: dg.AssetCheckExecutionContext, asset: str) -> list[str]:
    """Of this run; for a check that is executed by itself, of the run that made the asset last."""
    run = context.op_execution_context
    if run.has_partition_key or run.has_partition_key_range:
        return list(run.partition_keys)
    made = context.instance.fetch_materializations(dg.AssetKey(asset), limit=MOST_PER_RUN).records
    return [str(each.partition_key) for each in made if each.run_id == made[0].run_id]


def _result(
    faults: dict[str, str],
    passed: str,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    *,
    checked: Iterable[str] = (),
    **which: str,
) -> dg.AssetCheckResult:
    """`checked` are the partitions that it is about; `which` names the check if a step has several."""
    description = "; ".join(f"{key}: {fault}" for key, fault in faults.items()) or passed
    about = {"checked": ", ".join(sorted(checked))} if checked else {}
    return dg.AssetCheckResult(
        passed=not faults,
        severity=severity,
        description=description,
        metadata={**faults, **about},
        **which,
    )
