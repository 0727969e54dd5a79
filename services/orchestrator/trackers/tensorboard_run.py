"""TensorBoard event files."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from services.orchestrator.trackers.tracker import TrackedRun
from services.protocol.run.orchestrator import RunState
from services.protocol.run.tracker import TensorBoardTracker


class TensorBoardRun:
    """A run's folder; a resumed run adds a file to it.

    TensorBoard's own `Writer` cannot say that steps are done again, so events are written
    through what it writes with.
    """

    def __init__(self, folder: Path) -> None:
        self._events = EventFileWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        self._events.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._events.flush()

    def rolled_back(self, step: int) -> None:
        """TensorBoard drops earlier events of this step and later ones."""
        start = SessionLog(status=SessionLog.START)
        self._events.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self, state: RunState) -> None:
        """See `Tracker`."""
        self._events.close()


def open_run(config: TensorBoardTracker, run: TrackedRun) -> TensorBoardRun:
    """Begin or go on with the run's folder."""
    folder = run.run_dir / "tensorboard" if config.folder is None else Path(config.folder)
    return TensorBoardRun(folder if config.folder is None else folder / run.run_id)
