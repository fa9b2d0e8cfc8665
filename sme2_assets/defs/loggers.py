"""What assets say, for the command line."""

import logging
from collections.abc import Callable

import dagster as dg

Log = Callable[[str], None]

# How Dagster begins to say that a step is left out because another failed.
SKIPPED = "Dependencies for step "


def progress_logger(log: Log, ended: Callable[[], None]) -> dg.LoggerDefinition:
    """Passes on what assets say, without Dagster's own event messages, and that a step ended well."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            meta = getattr(record, "dagster_meta", {})
            event = meta.get("dagster_event")
            if event is not None and event.event_type == dg.DagsterEventType.STEP_SUCCESS:
                ended()
            message = str(meta.get("orig_message", ""))
            # That later steps do not run is no news to people: the error that ends the run is.
            if meta.get("step_key") and not meta.get("dagster_event") and not message.startswith(SKIPPED):
                log(message)

    @dg.logger(None, description="Progress for the command line.")
    def progress(_init_context: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("sme2", level=logging.INFO)
        logger.addHandler(Handler())
        return logger

    return progress
