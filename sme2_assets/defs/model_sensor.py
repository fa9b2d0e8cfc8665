"""Models become partitions automatically, and those that users add are exported."""

import json
import time
from typing import Any

import dagster as dg

from sme2_assets.defs.partitions import MODEL_VARIANTS, model_partitions, range_tags, run_key
from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import arrivals, is_known, variants
from sme2_assets.store import sha256_of_text
from sme2_assets.targets import TARGETS

# A whole folder of models that is added at once is exported over several ticks.
MOST_EXPORTS_PER_TICK = 10
# So long must the code of a model have been left alone, five minutes: its author may be writing it.
TICKS_AT_REST = 10


@dg.sensor(
    asset_selection=[dg.AssetKey("exported_model")],
    description="Makes every registered model variant a partition, and removes those whose model is gone. "
    "A model that a user added (a file in a models folder, an installed package) is exported when it appears "
    "and whenever its code changes, once it has been left alone for five minutes; the models of this package "
    "are exported when first profiled. Measurements stay in the warehouse when a partition is removed.",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def model_variants_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    known = context.instance.get_dynamic_partitions(MODEL_VARIANTS)
    registered = [variant.key for variant in variants()]
    new = [key for key in registered if key not in known]
    # One that is not registered may have been requested: a model of another source, or with options.
    gone = [key for key in known if key not in registered and not is_known(key)]
    exports, cursor = _exports_to_ask_for(context)
    context.update_cursor(cursor)
    if gone:
        context.log.info(f"No longer partitions, because their models are gone: {', '.join(gone)}")
    if not (new or gone or exports):
        return dg.SkipReason("The partitions already match the registered model variants.")
    requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    if new:
        requests.append(model_partitions.build_add_request(new))
    if gone:
        requests.append(model_partitions.build_delete_request(gone))
    return dg.SensorResult(run_requests=exports, dynamic_partitions_requests=requests)


def _exports_to_ask_for(context: dg.SensorEvaluationContext) -> tuple[list[dg.RunRequest], str]:
    """Runs for variants that are new or changed, some at a time, and the cursor that remembers them."""
    before = json.loads(context.cursor) if context.cursor else {}
    asked: dict[str, str] = before.get("asked", {})
    seen: dict[str, list[Any]] = before.get("seen", {})
    wanted = {}
    for variant, spec in arrivals():
        try:
            wanted[variant.key] = sha256_of_text(json.dumps(spec.identity(), sort_keys=True))[:16]
        except (OSError, Sme2Error) as error:
            context.log.warning(f"{variant} is not exported now: {error}")
    # How many ticks each has been as it is now.
    seen = {
        key: [identity, 1 + (seen[key][1] if key in seen and seen[key][0] == identity else 0)]
        for key, identity in wanted.items()
        if asked.get(key) != identity
    }
    fresh = [key for key, (_, ticks) in seen.items() if ticks >= TICKS_AT_REST][:MOST_EXPORTS_PER_TICK]
    runs = [
        dg.RunRequest(
            # With the time: a file that is changed and changed back is exported again.
            run_key=f"{key}:{wanted[key]}:{time.time_ns()}",
            # For every target: all measurements of the model are of what it was before.
            tags=range_tags([run_key(key, target) for target in TARGETS]),
            asset_selection=[dg.AssetKey("exported_model")],
        )
        for key in fresh
    ]
    remembered = {key: asked[key] for key in wanted if key in asked} | {key: wanted[key] for key in fresh}
    return runs, json.dumps({"asked": remembered, "seen": seen})
