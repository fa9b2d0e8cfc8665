"""What happens by itself."""

import dagster as dg

from sme2_assets.models.registry import variants
from sme2_assets.partitions import MODEL_VARIANTS, model_partitions


@dg.sensor(minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def model_variants_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Makes every registered model variant a partition, so that it can be clicked in the UI."""
    known = set(context.instance.get_dynamic_partitions(MODEL_VARIANTS))
    new = [variant.key for variant in variants() if variant.key not in known]
    if not new:
        return dg.SkipReason("Every registered model variant is a partition already.")
    return dg.SensorResult(dynamic_partitions_requests=[model_partitions.build_add_request(new)])
