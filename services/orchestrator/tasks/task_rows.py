"""Rows of task files and data sets, read one at a time from where they lie."""

import json
import os
import stat
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from services.orchestrator.tasks.prompts import WINDOW
from services.protocol.errors import InvalidInput
from services.protocol.run.task import LIVE, NOT_SHOWN, TaskSource
from services.protocol.text_file import not_utf8

_BLOCK = 4096  # rows


class Rows(ABC):
    """A table of rows; only some of it is ever in memory."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    def blocks(self) -> list[int]:
        """Sizes of blocks of rows, from the first row on, that are cheap to read in order."""
        whole, rest = divmod(len(self), _BLOCK)
        return [_BLOCK] * whole + ([rest] if rest else [])

    def place(self, number: int) -> str:
        """The name of row `number`, counted from 0, in error messages."""
        return f"{self._name}, row {number + 1}"

    @abstractmethod
    def row(self, number: int, *, quote: bool) -> Any:
        """Row `number`; an error shows its text only with `quote`."""


def open_rows(source: TaskSource) -> Rows:
    """The rows of a source.

    Raises:
        InvalidInput: there is nothing that can be read.
    """
    try:
        if source.dataset is not None:
            return _dataset_rows(source)
        assert source.file is not None
        if not stat.S_ISREG(os.stat(source.file).st_mode):
            # A pipe would be waited for, and a device read, for ever.
            raise InvalidInput("task file", source.name, "It is not an ordinary file.")
        if source.file.endswith(".parquet"):
            return ParquetRows(source.file)
        return JsonRows(source.file)
    except OSError as error:
        fix = f"It cannot be read: {error.strerror or error}."
        raise InvalidInput("task file", source.name, fix) from None


class LiveRows(Rows):
    """The only row of a run whose agents have tasks of their own, for its sample groups."""

    def __len__(self) -> int:
        return 1

    def row(self, number: int, *, quote: bool) -> Any:
        """As in `Rows`."""
        said = {"role": "user", "content": "(said to a live agent)"}
        return {"task_id": LIVE, "split": "train", "messages": [said]}


class JsonRows(Rows):
    """A file with one JSON object a line; kept in memory is where each line begins."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._starts, self._lines = array("Q"), array("Q")
        # Kept open: if the file is replaced during a run, the run reads the old one.
        self._file = Path(path).open("rb")  # noqa: SIM115
        start = 0
        for number, line in enumerate(self._file, start=1):
            if line.strip():
                self._starts.append(start)
                self._lines.append(number)
            start += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def place(self, number: int) -> str:
        """As in `Rows`."""
        return f"{self._name}, line {self._lines[number]}"

    def row(self, number: int, *, quote: bool) -> Any:
        """As in `Rows`."""
        self._file.seek(self._starts[number])
        line = self._file.readline()
        try:
            return json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            fix = not_utf8(error, line=self._lines[number])
            raise InvalidInput("task file", self._name, fix) from None
        except json.JSONDecodeError as error:
            fix = f"It is not JSON: {error.msg} at column {error.colno}."
            shown = line.decode("utf-8").rstrip("\n") if quote else NOT_SHOWN
            raise InvalidInput(self.place(number), shown, fix) from None


class ParquetRows(Rows):
    """A Parquet file; kept in memory are the row groups read last."""

    def __init__(self, path: str) -> None:
        parquet = _library("pyarrow.parquet", path)
        super().__init__(path)
        try:
            self._file = parquet.ParquetFile(path)
        except ValueError as error:  # as pyarrow's own errors are
            raise InvalidInput("task file", path, f"It is not Parquet: {error}.") from None
        groups = range(self._file.num_row_groups)
        self._starts = [0]
        for group in groups:
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(group).num_rows)
        # A streamed source is read some groups at a time, and retried groups come in between.
        self._group: Callable[[int], Any] = lru_cache(WINDOW + 1)(self._file.read_row_group)

    def __len__(self) -> int:
        return self._starts[-1]

    def blocks(self) -> list[int]:
        """As in `Rows`: the file's row groups."""
        return [end - start for start, end in pairwise(self._starts)]

    def row(self, number: int, *, quote: bool) -> Any:
        """As in `Rows`."""
        group = bisect_right(self._starts, number) - 1
        return self._group(group).slice(number - self._starts[group], 1).to_pylist()[0]


class DatasetRows(Rows):
    """A data set of Hugging Face `datasets`, which maps its files into memory."""

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(name)
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, number: int, *, quote: bool) -> Any:
        """As in `Rows`."""
        return self._dataset[number]


def _dataset_rows(source: TaskSource) -> Rows:
    assert source.dataset is not None
    library = _library("datasets", source.dataset)
    try:
        if (Path(source.dataset) / "dataset_dict.json").exists():
            dataset = library.load_from_disk(source.dataset)[source.dataset_split]
        elif (Path(source.dataset) / "state.json").exists():
            dataset = library.load_from_disk(source.dataset)
        else:
            dataset = library.load_dataset(
                source.dataset, source.dataset_config, split=source.dataset_split
            )
    except (OSError, ValueError, KeyError) as error:
        fix = f"`datasets` cannot load it: {error}."
        raise InvalidInput("tasks.dataset", source.dataset, fix) from None
    return DatasetRows(dataset, source.name)


def _library(name: str, wanted: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        fix = "Reading it takes more libraries: `pip install 'millrace[data]'`."
        raise InvalidInput("tasks", wanted, fix) from None
