"""The orchestrator's log of one run, also in the run's directory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from services.observability.log import JsonFormatter
from services.observability.metrics import RunMetrics

LOG_FILE = "log.jsonl"
_MOST_BYTES = 32 * 1024 * 1024


class _BoundedFile(RotatingFileHandler):
    """Counts the lines that could not be written."""

    def __init__(self, run_dir: Path, run_id: str) -> None:
        file = run_dir / LOG_FILE
        super().__init__(file, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._tags = {"run": run_id, "file": LOG_FILE, "cause": "disk"}

    def handleError(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        RunMetrics.dropped.inc(1, self._tags)


@contextmanager
def run_log(run_dir: Path, run_id: str) -> Iterator[None]:
    """While in this context, lines with `run` = `run_id` go to `log.jsonl` too.

    The file is bounded: full, it becomes `log.jsonl.1` and another begins. A disk that is
    full costs lines, never the run.
    """
    handler = _BoundedFile(run_dir, run_id)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: getattr(record, "fields", {}).get("run") == run_id)
    logger = logging.getLogger("millrace.orchestrator")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
