"""What the orchestrator logs about one run, also in the run's own directory."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from services.observability.log import JsonFormatter

LOG_FILE = "log.jsonl"
_MOST_BYTES = 32 * 1024 * 1024


@contextmanager
def run_log(run_dir: Path, run_id: str) -> Iterator[None]:
    """While in this context, lines with `run` = `run_id` go to `log.jsonl` too.

    The file is bounded: full, it becomes `log.jsonl.1` and another begins. A disk that is
    full costs lines, never the run.
    """
    handler = RotatingFileHandler(
        run_dir / LOG_FILE, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True
    )
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: getattr(record, "fields", {}).get("run") == run_id)
    logger = logging.getLogger("millrace.orchestrator")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
