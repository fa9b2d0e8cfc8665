"""The code location as Dagster sees it."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg

from sme2_assets.definitions import build_definitions, defs
from sme2_assets.defs.partitions import pair_partitions, run_partitions, sessions_in

SNAPSHOT = Path(__file__).with_name("asset_graph.json")


def asset_graph() -> dict[str, object]:
    """What a reviewer wants to see of a change to the graph."""
    graph = defs.resolve_asset_graph()
    assets = {}
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        assets[key.to_user_string()] = {
            "group": node.group_name,
            "kinds": sorted(node.kinds),
            "code_version": node.code_version,
            "depends_on": sorted(parent.to_user_string() for parent in node.parent_keys),
            "partitions": _partitions(node.partitions_def),
            "partitions_per_run": node.backfill_policy.max_partitions_per_run
            if node.backfill_policy
            else None,
            "checks": sorted(check.name for check in node.check_keys),
            "follows_by_itself": node.automation_condition is not None,
        }
    return {
        "assets": assets,
        "jobs": sorted(job.name for job in defs.jobs or []),
        "schedules": sorted(schedule.name for schedule in defs.schedules or []),
        "sensors": sorted(sensor.name for sensor in defs.sensors or []),
    }


def _partitions(definition: dg.PartitionsDefinition | None) -> str | None:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return " x ".join(sorted(dimension.name for dimension in definition.partitions_defs))
    if isinstance(definition, dg.DynamicPartitionsDefinition):
        return f"dynamic {definition.name}"
    if isinstance(definition, dg.StaticPartitionsDefinition):
        return ", ".join(definition.get_partition_keys())
    return None


def test_the_asset_graph_is_the_one_that_was_reviewed():
    expected = json.loads(SNAPSHOT.read_text())
    assert asset_graph() == expected, (
        "The asset graph changed. If that is meant: python -m sme2_assets_tests.test_definitions"
    )


def test_every_asset_has_a_description_an_owner_and_a_code_version():
    graph = build_definitions().resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description
        assert node.owners
        assert node.code_version
        assert node.kinds


def test_all_that_runs_by_itself_and_every_job_says_what_it_does():
    by_name = {it.name: it for it in (*(defs.jobs or []), *(defs.schedules or []), *(defs.sensors or []))}
    assert {name for name, it in by_name.items() if not it.description} == set()


def test_a_comparison_depends_on_both_states_of_its_platform():
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions("model_variants", ["toy_cnn-fp32", "toy_cnn-int8"])
    mapping = defs.resolve_asset_graph().get_partition_mapping(
        dg.AssetKey("sme2_comparison"), dg.AssetKey("timeline")
    )
    pair = dg.MultiPartitionKey({"model": "toy_cnn-fp32", "platform": "linux"})
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        upstream = mapping.get_upstream_mapped_partitions_result_for_partitions(
            downstream_partitions_subset=pair_partitions.subset_with_partition_keys([pair]),
            downstream_partitions_def=pair_partitions,
            upstream_partitions_def=run_partitions,
        )
    assert {str(key) for key in upstream.partitions_subset.get_partition_keys()} == {
        "toy_cnn-fp32|linux-sme2_off",
        "toy_cnn-fp32|linux-sme2_on",
    }


def test_partition_keys_of_a_run_become_sessions():
    keys = ["a-fp32|emulated-sme2_off", "a-fp32|emulated-sme2_on", "b-int8|linux-sme2_off"]
    assert sessions_in(keys) == {("a-fp32", "emulated"): ["off", "on"], ("b-int8", "linux"): ["off"]}


def test_a_new_model_becomes_a_partition():
    instance = dg.DagsterInstance.ephemeral()
    from sme2_assets.defs.model_sensor import model_variants_sensor

    result = model_variants_sensor(dg.build_sensor_context(instance=instance))
    assert isinstance(result, dg.SensorResult)
    [request] = result.dynamic_partitions_requests or []
    assert "toy_cnn-fp16" in request.partition_keys
    instance.add_dynamic_partitions("model_variants", list(request.partition_keys))
    again = model_variants_sensor(dg.build_sensor_context(instance=instance))
    assert isinstance(again, dg.SkipReason)


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(asset_graph(), indent=2) + "\n")
