"""All tasks of a run; only their ids are in memory."""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from services.orchestrator.tasks.curriculum import Curriculum, PassedOver, PassRates
from services.orchestrator.tasks.prompts import Mixture, Order
from services.orchestrator.tasks.task_rows import LiveRows, Rows, open_rows
from services.protocol.errors import InvalidInput
from services.protocol.run.evaluation import DEFAULT_SET
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import NOT_SHOWN, Task, TaskSource


class _Ids(Sequence[str]):
    """Ids that are made when they are asked for."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._at(number) for number in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._at(place)

    @abstractmethod
    def _at(self, place: int) -> str:
        """The id at a place from 0 on."""


class StreamedIds(_Ids):
    """The ids of a source's rows: its name and their numbers, counted from 1."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count

    def __len__(self) -> int:
        return self._count

    def _at(self, place: int) -> str:
        return f"{self._name}:{place + 1}"

    def row(self, task_id: str) -> int | None:
        """The row of an id, counted from 0; None if it is not of these."""
        name, _, number = task_id.rpartition(":")
        if name != self._name or not number.isdigit() or not 0 < int(number) <= self._count:
            return None
        return int(number) - 1


class JoinedIds(_Ids):
    """The ids of several sources, one after the other."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _at(self, place: int) -> str:
        part = bisect_right(self._ends, place)
        return self._parts[part][place - (self._ends[part - 1] if part else 0)]


class TaskTable(Mapping[str, Task]):
    """Tasks by id; each is read from its file when it is asked for.

    Attributes:
        train: ids of the tasks to learn from, source by source.
        heldout: ids of those that are only measured.
        sets: the same ids by held-out set, the first set first.

    Raises:
        InvalidInput: a row is no task; it names file, row and field. Without `quote` it never
            shows what the file holds: a client that may start a run may name any file.
    """

    def __init__(self, run: RunConfig, *, quote: bool = True) -> None:
        self._run = run
        self._quote = quote
        self._sources = [
            (source, LiveRows(source.name) if run.is_live else open_rows(source))
            for source in run.task_sources
        ]
        self._index: dict[str, tuple[int, int]] = {}
        self._streams: dict[int, StreamedIds] = {}
        self.sets: dict[str, Sequence[str]] = {}
        by_split: dict[str, list[Sequence[str]]] = {"train": [], "heldout": []}
        for place, (source, rows) in enumerate(self._sources):
            ids = self._add_stream(place) if source.stream else self._add(place, source, rows)
            by_split["train"].append(ids["train"])
            by_split["heldout"].append(ids["heldout"])
            if ids["heldout"]:
                name = source.evaluation_set or DEFAULT_SET
                self.sets[name] = JoinedIds([self.sets.get(name, []), ids["heldout"]])
        self.train, self.heldout = JoinedIds(by_split["train"]), JoinedIds(by_split["heldout"])
        self._counts = list(map(len, by_split["train"]))
        names = ", ".join(source.name for source, _ in self._sources)
        for split, found in (("train", self.train), ("heldout", self.heldout)):
            if not found and not (run.is_live and split == "heldout"):
                fix = "The file has no task of this split."
                raise InvalidInput(f"{names}: split", split, fix)
        for source, _ in self._sources:
            if source.evaluation_set and source.evaluation_set not in self.sets:
                fix = "The source has no held-out task: leave this out."
                raise InvalidInput(f"{source.name}: evaluation_set", source.evaluation_set, fix)

    @property
    def first_set(self) -> str:
        """The held-out set that is shown where there is one number."""
        return DEFAULT_SET if DEFAULT_SET in self.sets else next(iter(self.sets), DEFAULT_SET)

    def _add(self, place: int, source: TaskSource, rows: Rows) -> dict[str, Sequence[str]]:
        """Read every row; their ids by split."""
        ids: dict[str, list[str]] = {"train": [], "heldout": []}
        for number in range(len(rows)):
            task = self._task(source, rows, number)
            if task.task_id in self._index:
                shown = task.task_id if self._quote else NOT_SHOWN
                field = f"{rows.place(number)}: task_id"
                raise InvalidInput(field, shown, "It is used twice.")
            self._index[task.task_id] = (place, number)
            ids[task.split].append(task.task_id)
        return dict(ids)

    def _add_stream(self, place: int) -> dict[str, Sequence[str]]:
        """Read the first row only."""
        source, rows = self._sources[place]
        if sum(other.name == source.name for other, _ in self._sources) > 1:
            fix = "Another source has the same rows: leave one of the two out."
            raise InvalidInput("tasks.stream", source.name, fix)
        ids = self._streams[place] = StreamedIds(source.name, len(rows))
        if ids:
            self._streamed(place, 0)
        other = "heldout" if source.split == "train" else "train"
        return {str(source.split): ids, other: []}

    def _streamed(self, place: int, number: int) -> Task:
        source, rows = self._sources[place]
        task = self._task(source, rows, number)
        if task.split != source.split:
            field = f"{rows.place(number)}: split"
            raise InvalidInput(field, task.split, f"The source is streamed as {source.split}.")
        return task.model_copy(update={"task_id": self._streams[place][number]})

    def _task(self, source: TaskSource, rows: Rows, number: int) -> Task:
        where, row = rows.place(number), rows.row(number, quote=self._quote)
        task = source.task(row, number, where, quote=self._quote)
        environment = self._run.environment_of(source)
        if environment is None and task.grader is None:
            raise InvalidInput(where, "grader", "This key is missing.")
        if source.given and (task.answer is None or task.split != "train"):
            fix = "A source of given answers has an `answer` and `split: train` in every row."
            raise InvalidInput(where, "answer" if task.answer is None else "split", fix)
        return task.placed(source=source.label, environment=environment)

    def order(self, rates: PassRates, passed: PassedOver) -> Order:
        """The order in which the run uses prompts."""
        mixture, curriculum = self.mixture(self._run.seed), self._run.curriculum
        if curriculum is None:
            return mixture
        return Curriculum(
            curriculum, order=mixture, rates=rates, passed=passed, seed=self._run.seed
        )

    def mixture(self, seed: int) -> Mixture:
        """The order in which the tasks to learn from are used, as places in `train`."""
        weights = [source.weight for source, _ in self._sources]
        blocks = {place: self._sources[place][1].blocks() for place in self._streams}
        warmup = self._run.algorithm.cross_entropy.warmup_steps
        return Mixture(
            seed=seed,
            counts=self._counts,
            weights=weights,
            first=(warmup * self._run.batch_groups, [source.given for source, _ in self._sources]),
            blocks=blocks,
            task_ids=self.train,
        )

    def __getitem__(self, task_id: str) -> Task:
        if task_id in self._index:
            place, number = self._index[task_id]
            return self._task(*self._sources[place], number)
        for place, ids in self._streams.items():
            if (row := ids.row(task_id)) is not None:
                return self._streamed(place, row)
        raise KeyError(task_id)

    def __contains__(self, task_id: object) -> bool:
        """Whether there is such a task, without reading its row."""
        if task_id in self._index:
            return True
        streams = self._streams.values()
        return isinstance(task_id, str) and any(ids.row(task_id) is not None for ids in streams)

    def __iter__(self) -> Iterator[str]:
        return chain(self._index, *self._streams.values())

    def __len__(self) -> int:
        return len(self._index) + sum(map(len, self._streams.values()))


def load_tasks(path: str | Path, *, quote: bool = True) -> list[Task]:
    """The tasks of one file, read and checked as a run does; errors as in `TaskTable`."""
    config = {"name": "tasks", "model": "", "steps": 1, "batch_groups": 1, "group_size": 2}
    run = RunConfig.model_validate(config | {"task_file": str(path)})
    return list(TaskTable(run, quote=quote).values())
