"""Structured logs: one JSON object a line, with the fields that join the services."""

import json
import logging
import sys
import time
from typing import Any

FIELDS = ("run", "group", "trajectory", "replica", "version")
"""Fields that lines of different services have in common."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The record with every extra field it carries."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": record.name.removeprefix("millrace."),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Log:
    """A service's logger: an event name and fields, never a sentence with values in it."""

    def __init__(self, service: str) -> None:
        self._logger = logging.getLogger(f"millrace.{service}")
        if not self._logger.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(JsonFormatter())
            self._logger.addHandler(handler)
            self._logger.setLevel(logging.INFO)
            self._logger.propagate = False

    def info(self, event: str, **fields: Any) -> None:
        """Something that happened as it should."""
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: Any) -> None:
        """Something that went wrong and was dealt with."""
        self._logger.warning(event, extra={"fields": fields})

    def exception(self, event: str, **fields: Any) -> None:
        """Something unexpected, with its traceback."""
        self._logger.exception(event, extra={"fields": fields})
