"""Work that all ranks do side by side, which ends on all of them in the same way.

Ranks read for minutes, some longer than others, and a collective has a short deadline. So they
meet in the process group's store: one that fails is heard of at once, and the one that is last
keeps nobody from waiting.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from services.protocol.errors import InvalidInput
from services.trainer.collectives import LONGEST_WAIT
from services.transport.shared_memory import memory_domain

CHECK_S = 0.25
"""Between two looks at whether another rank has failed."""

_OUTCOME, _DONE = "outcome", "done"
_numbers = itertools.count()  # all ranks do the same work in the same order


class JointWork:
    """One piece of work; `joint_work` makes it."""

    def __init__(self, store: Store) -> None:
        self._store, self._checked = store, time.monotonic()

    def check(self) -> None:
        """Look now and then whether another rank has failed.

        Raises:
            InvalidInput: what another rank has met.
            RuntimeError: the failure of another rank, if it was no refused input.
        """
        if time.monotonic() - self._checked > CHECK_S:
            self._checked = time.monotonic()
            self._raise_failure()

    def once_a_node(self, work: Callable[[], object]) -> None:
        """Have one rank of each node do some work, while the others of that node wait.

        Raises:
            InvalidInput: a rank has met it.
            RuntimeError: another rank has failed.
        """
        node = f"node/{memory_domain()}"
        me = str(dist.get_rank())
        first: bytes = self._store.compare_set(node, "", me)
        if first.decode() == me:
            try:
                work()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._store.set(f"{node}/{_DONE}", "")
        self._store.wait([f"{node}/{_DONE}"], LONGEST_WAIT)
        self._raise_failure()

    def of_rank_0(self, compute: Callable[[], str]) -> str:
        """The text that rank 0 computes, on all ranks.

        Raises:
            InvalidInput: rank 0 has met it.
            RuntimeError: another rank has failed.
        """
        if dist.get_rank() == 0:
            text = ""
            try:
                text = compute()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self._store.set("value", text)
        self._store.wait(["value"], LONGEST_WAIT)
        self._raise_failure()
        return self._store.get("value").decode()

    def fail(self, error: BaseException) -> None:
        """This rank has failed: the first error is what all ranks raise."""
        if isinstance(error, InvalidInput):
            told = {"field": error.field, "value": str(error.value), "fix": error.fix}
        else:
            told = {"failed": f"rank {dist.get_rank()}: {type(error).__name__}: {error}"}
        self._store.compare_set(_OUTCOME, "", json.dumps(told))

    def finish(self) -> None:
        """This rank is done; waits for the others.

        Raises:
            InvalidInput: another rank has met it.
            RuntimeError: another rank has failed.
        """
        if self._store.add(_DONE, 1) == dist.get_world_size():
            self._store.compare_set(_OUTCOME, "", "{}")
        self._store.wait([_OUTCOME], LONGEST_WAIT)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if not self._store.check([_OUTCOME]):
            return
        told = json.loads(self._store.get(_OUTCOME))
        if "failed" in told:
            raise RuntimeError(f"the work ended with {told['failed']}")
        if told:
            raise InvalidInput(told["field"], told["value"], told["fix"])


@contextmanager
def joint_work() -> Iterator[JointWork]:
    """What stands inside is done by all ranks, or given up by all with the same error.

    Raises:
        InvalidInput: what a rank has met.
        RuntimeError: another rank has failed.
    """
    group = dist.group.WORLD
    assert group is not None, "the ranks have met"
    work = JointWork(PrefixStore(f"joint_work/{next(_numbers)}", group.get_group_store()))
    try:
        yield work
    except BaseException as error:
        work.fail(error)
        if isinstance(error, InvalidInput):
            work._raise_failure()  # what the first of them has met
        raise
    work.finish()
