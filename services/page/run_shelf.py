"""The runs that the page can show."""

from pathlib import Path
from typing import Any, Protocol

from services.page.run_folder import RunFolder

_MOST_RUNS = 500


class NoSuchRun(KeyError):
    """The page knows no run of that id."""


class RunShelf(Protocol):
    """Where runs are found."""

    def runs(self) -> list[dict[str, Any]]:
        """A line about each, newest first."""

    def open(self, run_id: str) -> RunFolder:
        """One of them.

        Raises:
            NoSuchRun: there is none of that id.
        """

    def status(self, run_id: str) -> dict[str, Any] | None:
        """What the run says of itself now; None where only its files can be asked."""

    def live(self) -> dict[str, Any] | None:
        """What the cluster says now; None where there is none to ask."""


class FolderShelf:
    """Run directories on this machine: one, or all those in a folder.

    Raises:
        InvalidInput: neither is there.
    """

    def __init__(self, path: str | Path) -> None:
        self._known: dict[str, RunFolder] = {}
        self._parent: Path | None = None
        folder = Path(path)
        if not (folder / "config.yaml").exists() and any(_inside(folder)):
            self._parent = folder
        else:
            run = RunFolder.open(folder)
            self._known[run.run_id] = run

    def runs(self) -> list[dict[str, Any]]:
        """A line about each, newest first."""
        if self._parent is None:
            return [_line(run.path) for run in self._known.values()]
        found = sorted(_inside(self._parent), key=_made_at, reverse=True)
        return [_line(path) for path in found[:_MOST_RUNS]]

    def open(self, run_id: str) -> RunFolder:
        """One of them.

        Raises:
            NoSuchRun: there is none of that id.
        """
        if run_id in self._known:
            return self._known[run_id]
        # A name that is listed cannot lead out of the folder.
        inside = _inside(self._parent) if self._parent is not None else []
        for path in inside:
            if path.name == run_id:
                return self._known.setdefault(run_id, RunFolder.open(path))
        raise NoSuchRun(run_id)

    def status(self, run_id: str) -> dict[str, Any] | None:
        """Nothing: files only."""
        return None

    def live(self) -> dict[str, Any] | None:
        """Nothing: files only."""
        return None


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


def _line(path: Path) -> dict[str, Any]:
    return {"run_id": path.resolve().name, "made_at": _made_at(path)}
