"""What assets say, for the command line."""

import logging
from collections.abc import Callable

import dagster as dg

from sme2_assets.defs.jobs import INPUT_ASSETS

Log = Callable[[str], None]

# How Dagster's message begins when it skips a step because another failed.
SKIPPED = "Dependencies for step "


def progress_logger(log: Log, ended: Callable[[], None]) -> dg.LoggerDefinition:
    """Passes on what assets log, without Dagster's own event messages, and each step's success."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            meta = getattr(record, "dagster_meta", {})
            event = meta.get("dagster_event")
            if (
                event is not None
                and event.event_type == dg.DagsterEventType.STEP_SUCCESS
                # They are over before there is any progress to tell.
                and event.step_key not in INPUT_ASSETS
            ):
                ended()
            if record.levelno < logging.INFO:
                return
            message = str(meta.get("orig_message", ""))
            # People need the error that ended the run, not the list of skipped steps.
            if meta.get("step_key") and not meta.get("dagster_event") and not message.startswith(SKIPPED):
                log(message)

    @dg.logger(None, description="Progress for the command line.")
    def progress(_init_context: dg.InitLoggerContext) -> logging.Logger:
        # Dagster tells of a step's success at this level.
        logger = logging.Logger("sme2", level=logging.DEBUG)
        logger.addHandler(Handler())
        return logger

    return progress
