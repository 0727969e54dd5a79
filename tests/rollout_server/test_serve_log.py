"""A restarted Serve controller takes a replica over only if the replica knows its log file."""

import logging
import logging.handlers
from collections.abc import Iterator
from logging.config import dictConfig
from pathlib import Path

import pytest
from ray.serve._private import logging_utils

from services.rollout_server.serve_log import SERVE_LOGGER, serve_log_kept


@pytest.fixture
def buffered(tmp_path: Path) -> Iterator[logging.handlers.MemoryHandler]:
    """As Serve gives each of its replicas."""
    file = logging.FileHandler(tmp_path / "replica.log")
    handler = logging.handlers.MemoryHandler(1, target=file)
    logger = logging.getLogger(SERVE_LOGGER)
    before, logger.handlers = logger.handlers, [handler]
    yield handler
    logger.handlers = before
    file.close()


def configure_logging() -> None:
    dictConfig({"version": 1, "disable_existing_loggers": False})


def test_serve_finds_its_log_after_logging_was_configured_anew(
    buffered: logging.handlers.MemoryHandler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Node:
        def get_logs_dir_path(self) -> str:
            return str(tmp_path)

    monkeypatch.setattr(logging_utils.ray._private.worker, "_global_node", Node())
    assert logging_utils.get_component_logger_file_path() == "/replica.log"
    with serve_log_kept():
        configure_logging()
    assert logging_utils.get_component_logger_file_path() == "/replica.log"
    logging.getLogger(SERVE_LOGGER).error("still written")
    buffered.flush()
    assert "still written" in (tmp_path / "replica.log").read_text()


def test_without_care_the_log_is_lost(buffered: logging.handlers.MemoryHandler) -> None:
    """Else the care is not needed any more."""
    configure_logging()
    assert buffered.target is None
