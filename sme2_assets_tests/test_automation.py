"""What follows a measurement by itself, and what does not."""

from collections.abc import Sequence

import dagster as dg
import pytest

from sme2_assets.definitions import defs
from sme2_assets.defs.partitions import (
    pair_key,
    pair_partitions,
    range_tags,
    run_key,
    run_partitions,
)
from sme2_assets.targets import TargetKey

# Resolved while no instance of another test is in the way.
defs.resolve_asset_graph()

VARIANT = "toy_cnn-fp32"
OFF, ON = (run_key(VARIANT, TargetKey("linux", sme2)) for sme2 in ("off", "on"))
PAIR = pair_key(VARIANT, "linux")
CHECKS = {
    "timeline": ("every_nanosecond_accounted_for", "sme2_evidence_fits_the_state"),
    "kernel_evidence": ("sme2_kernels_executed",),
}


class Lab:
    """An instance on which runs happen whose assets do nothing, and the daemon's look at it after each."""

    def __init__(self) -> None:
        self.instance = dg.DagsterInstance.ephemeral()
        self.instance.add_dynamic_partitions("model_variants", [VARIANT, "toy_cnn-int8"])
        self.cursor = None
        assert self.requested() == {}

    def run(
        self,
        keys: Sequence[str],
        *,
        fails: str = "",
        stop_after: str = "",
    ) -> None:
        """A run of the profile job."""

        def asset(name: str, deps: Sequence[str]) -> dg.AssetsDefinition:
            @dg.asset(
                name=name,
                deps=deps,
                partitions_def=run_partitions,
                backfill_policy=dg.BackfillPolicy.multi_run(2),
                check_specs=[
                    dg.AssetCheckSpec(check, asset=name, blocking=True) for check in CHECKS.get(name, ())
                ],
            )
            def made(context: dg.AssetExecutionContext):
                yield dg.MaterializeResult(
                    check_results=[
                        dg.AssetCheckResult(check_name=check, passed=name != fails)
                        for check in CHECKS.get(name, ())
                    ]
                )
                if name == stop_after:
                    raise RuntimeError("the process dies here")

            return made

        assets = [
            asset("etdump_traces", []),
            asset("timeline", ["etdump_traces"]),
            asset("kernel_evidence", ["etdump_traces"]),
            asset("category_summary", ["etdump_traces"]),
        ]
        dg.materialize(
            assets,
            instance=self.instance,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags=range_tags(keys) if len(keys) > 1 else {},
            raise_on_error=False,
        )

    def compare_and_report(self) -> None:
        """The run of a command line that compares the session it names."""

        @dg.asset(partitions_def=pair_partitions)
        def sme2_comparison() -> None: ...

        @dg.asset(partitions_def=pair_partitions, deps=[sme2_comparison])
        def report() -> None: ...

        dg.materialize([sme2_comparison, report], instance=self.instance, partition_key=PAIR)

    def requested(self) -> dict[str, set[str]]:
        """What the daemon asks for at its next tick: partitions by asset."""
        result = dg.evaluate_automation_conditions(defs, self.instance, cursor=self.cursor)
        self.cursor = result.cursor
        assets = ("sme2_comparison", "report", "overview")
        found = {name: result.get_requested_partitions(dg.AssetKey(name)) for name in assets}
        return {name: {str(key) for key in keys} for name, keys in found.items() if keys}


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_pair_that_was_measured_together_is_compared_and_reported_once(lab: Lab):
    lab.run([OFF, ON])
    assert lab.requested() == {"sme2_comparison": {PAIR}, "report": {PAIR}}
    assert lab.requested() == {}
    lab.run([OFF, ON])
    assert lab.requested() == {"sme2_comparison": {PAIR}, "report": {PAIR}}


def test_what_a_command_line_compares_and_reports_is_not_done_once_more(lab: Lab):
    # Dagster sees no tags of what happened before anything else had.
    lab.run([OFF, ON])
    lab.requested()
    lab.run([OFF, ON])
    lab.compare_and_report()
    result = dg.evaluate_automation_conditions(defs, lab.instance, cursor=lab.cursor)
    assert result.get_num_requested(dg.AssetKey("overview")) == result.total_requested == 1
    lab.cursor = result.cursor
    lab.run([OFF, ON])
    assert lab.requested() == {"sme2_comparison": {PAIR}, "report": {PAIR}}


def test_a_state_that_was_measured_alone_is_not_compared(lab: Lab):
    lab.run([OFF])
    assert lab.requested() == {}
    lab.run([ON])
    assert lab.requested() == {}, "two states of two sessions are no pair"


def test_a_state_that_was_measured_again_alone_is_not_compared_with_the_older_one(lab: Lab):
    lab.run([OFF, ON])
    lab.requested()
    lab.run([OFF])
    assert lab.requested() == {}
    lab.run([OFF, ON])
    assert set(lab.requested()) == {"sme2_comparison", "report"}


def test_a_run_that_is_not_complete_or_whose_checks_failed_is_not_compared(lab: Lab):
    lab.run([OFF, ON])
    lab.requested()
    lab.run([OFF, ON], stop_after="etdump_traces")
    assert lab.requested() == {}
    lab.run([OFF, ON], fails="timeline")
    assert lab.requested() == {}
    lab.run([OFF, ON])
    assert set(lab.requested()) == {"sme2_comparison", "report"}


def test_a_pair_whose_checks_end_after_the_daemon_looked_is_compared_then(lab: Lab):
    for asset in ("etdump_traces", "timeline", "kernel_evidence", "category_summary"):
        for key in (OFF, ON):
            lab.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key))
    assert lab.requested() == {}
    for asset, checks in CHECKS.items():
        for check in checks:
            evaluation = dg.AssetCheckEvaluation(dg.AssetKey(asset), check, passed=True, metadata={})
            lab.instance.report_runless_asset_event(evaluation)
    assert lab.requested() == {"sme2_comparison": {PAIR}, "report": {PAIR}}
    assert lab.requested() == {}


def test_a_new_report_makes_the_overview_anew(lab: Lab):
    lab.instance.report_runless_asset_event(dg.AssetMaterialization("report", partition=PAIR))
    result = dg.evaluate_automation_conditions(defs, lab.instance, cursor=lab.cursor)
    assert result.get_num_requested(dg.AssetKey("overview")) == result.total_requested == 1


def test_reports_that_were_there_before_anybody_looked_get_an_overview():
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions("model_variants", [VARIANT])
    instance.report_runless_asset_event(dg.AssetMaterialization("report", partition=PAIR))
    first = dg.evaluate_automation_conditions(defs, instance)
    assert first.get_num_requested(dg.AssetKey("overview")) == first.total_requested == 1
    second = dg.evaluate_automation_conditions(defs, instance, cursor=first.cursor)
    assert second.total_requested == 0
