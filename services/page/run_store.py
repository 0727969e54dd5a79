"""The runs that the page can show."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from cachetools import LRUCache

from services.page.reading.comparison.comparison import Comparison
from services.page.reading.comparison.run_figures import FiguresReader, RunFigures
from services.page.reading.run_folder import RunFolder

MOST_RUNS = 500
_MOST_OPEN = 32


class NoSuchRun(KeyError):
    """The page knows no run of that id."""


class RunGone(NoSuchRun):
    """The directory of a run is not there any more."""


class RunStore(ABC):
    """A source of runs; the folders opened last hold indexes of their files in memory."""

    field = "RUN_DIR"
    """The name that errors have for a run's path."""

    def __init__(self) -> None:
        self._open: LRUCache[str, RunFolder] = LRUCache(_MOST_OPEN)
        self._turn = Lock()
        self._figures = FiguresReader()

    @abstractmethod
    def places(self) -> dict[str, Path]:
        """The directory of each run by its id, newest first."""

    def path_of(self, run_id: str) -> Path:
        """The directory of a run.

        Raises:
            NoSuchRun: there is none of that id.
        """
        path = self.places().get(run_id)
        if path is None:
            raise NoSuchRun(run_id)
        return path

    def runs(self) -> list[dict[str, Any]]:
        """Each run with its figures, newest first."""
        places = islice(self.places().items(), MOST_RUNS)
        return [self._figures_of(run_id, path).as_json() for run_id, path in places]

    def figures(self, run_id: str) -> RunFigures:
        """The figures of a run.

        Raises:
            NoSuchRun: there is none of that id.
        """
        return self._figures_of(run_id, self.path_of(run_id))

    def _figures_of(self, run_id: str, path: Path) -> RunFigures:
        found, status = self._figures.of(path, run_id), self.status(run_id)
        return found if status is None else replace(found, state=status["state"])

    def comparison(self, run_ids: Iterable[str]) -> Comparison:
        """Runs side by side.

        Raises:
            As `open`.
        """
        return Comparison([(self.open(one), self.figures(one)) for one in dict.fromkeys(run_ids)])

    def open(self, run_id: str) -> RunFolder:
        """A run's folder.

        Raises:
            NoSuchRun: there is none of that id.
            RunGone: it was there before.
            InvalidInput: its directory cannot be seen from here.
        """
        with self._turn:
            folder = self._open.get(run_id) or RunFolder.open(self.path_of(run_id), self.field)
            if not folder.is_there:
                raise RunGone(run_id)
            self._open[run_id] = folder
            return folder

    def status(self, run_id: str) -> dict[str, Any] | None:
        """The run's status; None if only its files can be read."""
        return None

    def live(self) -> dict[str, Any] | None:
        """The state of the cluster; None without one."""
        return None


class FolderRunStore(RunStore):
    """Run directories on this machine: one, or all those in a folder.

    Raises:
        InvalidInput: neither is there.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._place = Path(path)
        self._holds_several = not (self._place / "config.yaml").exists() and bool(
            _inside(self._place)
        )
        if not self._holds_several:
            RunFolder.open(self._place)

    def places(self) -> dict[str, Path]:
        """See `RunStore`: a name that is listed cannot lead out of the folder."""
        found = self._paths().items()
        return dict(sorted(found, key=lambda run: _made_at(run[1]), reverse=True))

    def _paths(self) -> dict[str, Path]:
        """By run id, which is the name of the folder itself and not of a link to it."""
        found = _inside(self._place) if self._holds_several else [self._place]
        return {path.resolve().name: path for path in found}


def _inside(folder: Path) -> list[Path]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    return [path for path in paths if _is_text(path.name) and (path / "config.yaml").is_file()]


def _is_text(name: str) -> bool:
    """Other names cannot be asked for, nor shown."""
    try:
        return bool(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _made_at(path: Path) -> float:
    try:
        return (path / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0
