"""Writes checkpoints while training continues."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save

from services.disk import DISK_FULL, has_space
from services.protocol.trainer import CheckpointReport
from services.trainer.checkpoints.checkpoint import Parts, state_of
from services.trainer.checkpoints.folder import CheckpointFolder
from services.trainer.checkpoints.manifest import (
    CheckpointManifest,
    FileDigest,
    digest_of,
)
from services.trainer.checkpoints.model_files import FOLDER, copy_model_files
from services.trainer.collectives import LONGEST_WAIT, all_gather, from_rank_0

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True)
class WriteProblem:
    """Why a checkpoint could not be written to disk; false when all of it was.

    Attributes:
        text: the reason, for people.
        disk_full: the disk was full.
    """

    text: str = ""
    disk_full: bool = False

    def __bool__(self) -> bool:
        return bool(self.text)

    @classmethod
    def of_file(cls, error: OSError) -> Self:
        """An error of the file system."""
        return cls(text=f"{error.strerror}: {error.filename}", disk_full=error.errno in DISK_FULL)

    @classmethod
    def of_tensors(cls, error: BaseException, folder: Path) -> Self:
        """An error of the tensor writer, whose type and text on a full disk vary."""
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        return cls(text=str(error), disk_full=full or not has_space(folder))


class CheckpointWriter:
    """Copies what a checkpoint holds, then writes it in a thread; one at a time. Collective.

    The thread talks to the other ranks over a process group of its own: collectives of two
    threads in one group would meet in a different order on each rank.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._group: dist.ProcessGroup | None = None
        self._writing: tuple[int, Future[WriteProblem]] | None = None
        self._saved_step, self._problem = 0, WriteProblem()

    def follow(self, saved_step: int) -> None:
        """A run begins, and this is the step of its newest checkpoint, 0 for none."""
        self.settle()
        self._saved_step, self._problem = saved_step, WriteProblem()

    def begin(
        self, folder: CheckpointFolder, parts: Parts, manifest: CheckpointManifest, *, kept: int
    ) -> None:
        """Copy the state and begin to write it; the newest `kept` checkpoints stay.

        Waits for the one before. A step that has a checkpoint keeps it.
        """
        self.settle()
        step = manifest.progress.step
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        writing, problem = from_rank_0(lambda: _attempt(lambda: _begin(folder, step), None))
        if problem:
            self._note(step, problem)
        elif writing is None:
            self._saved_step = step
        else:
            state = state_of(parts)
            saving = async_save(state, checkpoint_id=writing, process_group=self._group)
            assert isinstance(saving, Future), "the state was copied before it returned"
            work = _Writing(folder, writing, manifest, kept, self._group)
            self._writing = step, self._thread.submit(work.finish, saving)

    def settle(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            step, writing = self._writing
            self._writing = None
            self._note(step, writing.result())

    def report(self) -> CheckpointReport:
        """The newest checkpoint, and the problem that was met since the last report."""
        if self._writing is not None and self._writing[1].done():
            self.settle()
        problem, self._problem = self._problem, WriteProblem()
        return CheckpointReport(
            saved_step=self._saved_step, problem=problem.text, disk_full=problem.disk_full
        )

    def _note(self, step: int, problem: WriteProblem) -> None:
        if problem:
            text = f"the checkpoint of step {step} was not written: {problem.text}"
            self._problem = replace(problem, text=text)
        else:
            self._saved_step = step


@dataclass(frozen=True)
class _Writing:
    """One checkpoint on its way to disk, in the writer's thread."""

    folder: CheckpointFolder
    writing: Path
    manifest: CheckpointManifest
    kept: int
    group: dist.ProcessGroup

    def finish(self, saving: "Future[Any]") -> WriteProblem:
        """Wait for the tensors, add the rest; returns the problem that any rank has met."""
        problem = self._finish(saving)
        if problem and dist.get_rank() == 0:
            shutil.rmtree(self.writing, ignore_errors=True)
        return problem

    def _finish(self, saving: "Future[Any]") -> WriteProblem:
        try:
            saving.result()
        except CheckpointException as error:  # raised on all ranks
            first, _ = next(iter(error.failures.values()))
            return WriteProblem.of_tensors(first, self.writing)
        nothing: dict[str, FileDigest] = {}
        gathered = all_gather(_attempt(self._own_files, nothing), self.group)
        if problem := next(filter(None, (one for _, one in gathered)), None):
            return problem
        files = {name: digest for part, _ in gathered for name, digest in part.items()}
        done = self.manifest.model_copy(update={"files": dict(sorted(files.items()))})
        return from_rank_0(lambda: _attempt(lambda: self._complete(done), None)[1], self.group)

    def _own_files(self) -> dict[str, FileDigest]:
        """Digests of what this rank wrote; rank 0 wrote all that is not one rank's own."""
        rank = dist.get_rank()
        mine = list(self.writing.glob(f"__{rank}_*"))
        if rank == 0:
            copies = copy_model_files(self.manifest.model, self.writing / FOLDER)
            mine += [*copies, self.writing / ".metadata"]
        return {str(path.relative_to(self.writing)): digest_of(path) for path in mine}

    def _complete(self, manifest: CheckpointManifest) -> None:
        self.folder.complete(self.writing, manifest)
        self.folder.rotate(self.kept)


def _begin(folder: CheckpointFolder, step: int) -> Path | None:
    return None if folder.of_step(step).exists() else folder.begin(step)


def _attempt(work: Callable[[], T], otherwise: U) -> tuple[T | U, WriteProblem]:
    """The result of `work` without a problem, or `otherwise` with the file system's error."""
    try:
        return work(), WriteProblem()
    except OSError as error:
        return otherwise, WriteProblem.of_file(error)
