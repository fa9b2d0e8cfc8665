"""Partition keys of models and targets, and how they map onto one another.

Dagster's multi-partitions have exactly two dimensions, so platform and SME2 state are one key, the
target. The two states of a platform are adjacent, off before on: a pair is a partition range. One run
has assets of one partitioning only, so the export and the runner have the keys of what is measured with them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import dagster as dg

from sme2_assets.targets.keys import PLATFORMS, TARGETS, TargetKey

# Backfill policies and multi-partition mappings are in beta; they work, and tests here cover them. Their
# warnings are filtered in this module, because everything that uses them imports it.
warnings.filterwarnings("ignore", category=dg.BetaWarning)

MODEL_VARIANTS = "model_variants"

model_partitions = dg.DynamicPartitionsDefinition(name=MODEL_VARIANTS)
target_partitions = dg.StaticPartitionsDefinition([str(target) for target in TARGETS])
platform_partitions = dg.StaticPartitionsDefinition(list(PLATFORMS))

run_partitions = dg.MultiPartitionsDefinition({"model": model_partitions, "target": target_partitions})
pair_partitions = dg.MultiPartitionsDefinition({"model": model_partitions, "platform": platform_partitions})

# A comparison needs both states of its platform.
both_states = dg.MultiPartitionMapping(
    {
        "model": dg.DimensionPartitionMapping("model", dg.IdentityPartitionMapping()),
        "target": dg.DimensionPartitionMapping(
            "platform",
            dg.StaticPartitionMapping({str(target): target.platform for target in TARGETS}),
        ),
    }
)

# On a run: its partition, or the first and the last key of a range, such as both states of a platform.
PARTITION = "dagster/partition"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
# On a run that measures: what, in words. Lists of runs show it; the keys of a range they do not.
SUBJECT_TAG = "measures"
# On a run that belongs to a night: which night, and the device it keeps busy.
NIGHT_TAG = "sme2/night"
DEVICE_TAG = "sme2/device"
# The key a pair is compared under: two devices measure it in turn, or one would be compared twice.
PAIR_TAG = "sme2/pair"

# On a run that only one worker can do. It is dagster-celery's tag, which may not be installed.
QUEUE_TAG = "dagster-celery/queue"

# Both states of a platform, if both are asked for.
MOST_PER_RUN = 2
pair_per_run = dg.BackfillPolicy.multi_run(max_partitions_per_run=MOST_PER_RUN)


def run_key(variant: str, target: TargetKey) -> str:
    return dg.MultiPartitionKey({"model": variant, "target": str(target)})


def pair_key(variant: str, platform: str) -> str:
    return dg.MultiPartitionKey({"model": variant, "platform": platform})


def range_tags(keys: Sequence[str]) -> dict[str, str]:
    """What makes several partitions one run."""
    return {RANGE_START: keys[0], RANGE_END: keys[-1]}


def parse_run_key(key: str) -> tuple[str, TargetKey]:
    variant, target = key.split("|")
    return variant, TargetKey.parse(target)


def parse_pair_key(key: str) -> tuple[str, str]:
    variant, platform = key.split("|")
    return variant, platform


def sessions_in(keys: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The sessions that a run's partition keys ask for: model and platform, with the states to measure."""
    sessions: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        variant, target = parse_run_key(key)
        sessions.setdefault((variant, target.platform), []).append(target.sme2)
    return sessions
