"""Run directories that somebody looks at."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from services.page.reading.run_folder import RunFolder

_MOST = 32


class NoSuchRun(KeyError):
    """The page knows no run of that id."""


class RunGone(NoSuchRun):
    """The directory of a run is not there any more."""


class OpenFolders:
    """Folders by run id, those asked for last: each holds indexes of its files in memory."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._open: OrderedDict[str, RunFolder] = OrderedDict()
        self._turn = Lock()

    def get(self, run_id: str, find: Callable[[], str | Path], *, field: str) -> RunFolder:
        """The folder of a run; `find` is asked for its path where it is not open.

        Raises:
            RunGone: it was there before.
            InvalidInput: there is none at the path, which `field` names; and what `find` raises.
        """
        with self._turn:
            folder = self._open.get(run_id) or RunFolder.open(find(), field=field)
            if not folder.is_there:
                raise RunGone(run_id)
            self._open[run_id] = folder
            self._open.move_to_end(run_id)
            while len(self._open) > self._most:
                self._open.popitem(last=False)
            return folder
