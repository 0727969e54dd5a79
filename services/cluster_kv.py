"""A note that outlives the process that wrote it: in the key-value store of Ray's head.

The store is private to Ray (`ray.experimental.internal_kv`); Serve keeps what it has deployed
in it. `tests/cluster/test_notes.py` fails when upstream changes it.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import ray
from ray.experimental import internal_kv

from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import NAMESPACE

T = TypeVar("T")
_TIMEOUT_S = 20.0


class ClusterNote:
    """A text under a name, the same for every process of the cluster.

    Every method raises `NotReady` where the head does not answer in time.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    async def write(self, text: str) -> None:
        """Put it in the place of what was there."""
        await _called(lambda: internal_kv._internal_kv_put(self._name, text, namespace=NAMESPACE))

    async def read(self) -> str | None:
        """What was written last, None if nothing or after `erase`."""
        found = await _called(lambda: internal_kv._internal_kv_get(self._name, namespace=NAMESPACE))
        return None if found is None else found.decode()

    async def erase(self) -> None:
        """Forget it; also if nothing is there."""
        await _called(lambda: internal_kv._internal_kv_del(self._name, namespace=NAMESPACE))


async def _called(call: Callable[[], T]) -> T:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await asyncio.to_thread(call)
    except TimeoutError:
        raise NotReady(f"the cluster's head does not answer in {_TIMEOUT_S:g} s") from None
    except (ray.exceptions.RayError, AttributeError) as error:  # the latter: not connected
        raise NotReady(f"the cluster's head does not answer: {error}") from error
