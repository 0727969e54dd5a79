"""A Ray cluster that a command joins for facts that HTTP does not give."""

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.protocol.errors import InvalidInput, NotReady
from services.protocol.weights.weight_bus import NAMESPACE

_CONNECT_S = 5.0
_JOIN_S = 60.0


@contextmanager
def joined_cluster(address: str | None) -> Iterator[None]:
    """Join a Ray cluster inside the block.

    Args:
        address: `host:port` of the cluster; None: RAY_ADDRESS, else the one on this machine.

    Raises:
        InvalidInput: there is no cluster at the address, or it asks for a token.
        NotReady: it does not let this process in.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address != "auto":
        _check_listener(address)
    refused: list[Exception] = []

    def join() -> None:
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            refused.append(error)

    # A daemon: without its token Ray retries for ever, and cannot be interrupted.
    thread = threading.Thread(target=join, name="join", daemon=True)
    with messages_to_stderr():
        thread.start()
        thread.join(_JOIN_S)
        if thread.is_alive():
            mode = os.environ.get("RAY_AUTH_MODE", "not set")
            raise NotReady(
                f"the Ray cluster at {address} does not let this command in after "
                f"{_JOIN_S:g} s: does it ask for a token? RAY_AUTH_MODE is {mode} here"
            )
        if refused:
            fix = f"The Ray cluster cannot be joined: {str(refused[0]).splitlines()[0]}"
            raise InvalidInput("--address", address, fix)
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def messages_to_stderr() -> Iterator[None]:
    """Have the cluster's warnings written to standard error, whatever `log_to_driver` says.

    Ray prints them to standard output, where they would end up in a command's JSON.
    """
    from ray._private import worker

    original = worker.print_to_stdstream

    def to_stderr(data: dict[str, Any], *args: Any, **options: Any) -> None:
        original({**data, "is_err": True}, *args, **options)

    with mock.patch.object(worker, "print_to_stdstream", to_stderr):
        yield


def node_actors(actor: type) -> list[tuple[str, Any]]:
    """Start an actor on every living node of the joined cluster.

    Returns:
        The node's address and the actor's handle, sorted by address.
    """
    found = []
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote: Any = ray.remote(actor)
            handle = remote.options(num_cpus=0, scheduling_strategy=here).remote()
            found.append((node["NodeManagerAddress"], handle))
    return sorted(found, key=lambda one: one[0])


def _check_listener(address: str) -> None:
    """Ray itself retries an address at which nothing listens for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        fix = f"Nothing answers there ({error}); write host:port of the cluster."
        raise InvalidInput("--address", address, fix) from None
