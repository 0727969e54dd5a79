"""Values in the key-value store of Ray's head, which outlive the process that wrote them.

The store is private to Ray (`ray.experimental.internal_kv`); Serve keeps what it has deployed
in it. `tests/cluster/test_cluster_kv.py` fails when upstream changes it.
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


class ClusterValue:
    """A text under a name that every process of the cluster reads and writes.

    Every method raises `NotReady` where the head does not answer in time.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    async def write(self, text: str) -> None:
        """Replace the text."""
        await _called(lambda: internal_kv._internal_kv_put(self._name, text, namespace=NAMESPACE))

    async def read(self) -> str | None:
        """The text that was written last; None if there is none."""
        found = await _called(lambda: internal_kv._internal_kv_get(self._name, namespace=NAMESPACE))
        return None if found is None else found.decode()

    async def erase(self) -> None:
        """Remove the text, if there is one."""
        await _called(lambda: internal_kv._internal_kv_del(self._name, namespace=NAMESPACE))


async def values_below(prefix: str) -> dict[str, str]:
    """The texts of all values whose names begin with `prefix`, by the rest of their names.

    Raises:
        NotReady: the head does not answer in time.
    """

    def read() -> dict[str, str]:
        names = internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
        found = {name: internal_kv._internal_kv_get(name, namespace=NAMESPACE) for name in names}
        return {
            name.decode().removeprefix(prefix): text.decode()
            for name, text in found.items()
            if text is not None  # erased meanwhile
        }

    return await _called(read)


async def _called(call: Callable[[], T]) -> T:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await asyncio.to_thread(call)
    except TimeoutError:
        raise NotReady(f"the cluster's head does not answer in {_TIMEOUT_S:g} s") from None
    except (ray.exceptions.RayError, AttributeError) as error:  # the latter: not connected
        raise NotReady(f"the cluster's head does not answer: {error}") from error
