"""A Ray cluster that a command joins, where HTTP does not reach what it wants to know."""

import logging
import os
import socket
import threading
from typing import Self

import ray
from ray.exceptions import RayError

from services.protocol.errors import InvalidInput, NotReady
from services.protocol.weights.weight_bus import NAMESPACE

_KNOCK_S = 5.0
_JOIN_S = 30.0


class JoinedCluster:
    """A context manager: joined to the cluster inside.

    Args:
        address: `host:port` of the cluster; None: what RAY_ADDRESS says, else the one that
            runs on this machine.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS") or "auto"
        self._refused: Exception | None = None

    def __enter__(self) -> Self:
        """Join the cluster.

        Raises:
            InvalidInput: there is none at the address, or it asks for a token.
            NotReady: it does not let us in.
        """
        if self._address != "auto":
            _knock(self._address)
        # A daemon: Ray tries for ever where its token is missing, and cannot be interrupted.
        thread = threading.Thread(target=self._join, name="join", daemon=True)
        thread.start()
        thread.join(_JOIN_S)
        if thread.is_alive():
            mode = os.environ.get("RAY_AUTH_MODE", "not set")
            raise NotReady(
                f"the Ray cluster at {self._address} does not let this command in after "
                f"{_JOIN_S:g} s: does it ask for a token? RAY_AUTH_MODE is {mode} here"
            )
        if self._refused is not None:
            fix = f"The Ray cluster cannot be joined: {str(self._refused).splitlines()[0]}"
            raise InvalidInput("--address", self._address, fix)
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()

    def _join(self) -> None:
        try:
            ray.init(
                address=self._address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            self._refused = error


def _knock(address: str) -> None:
    """Ray itself tries an address at which nobody listens for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _KNOCK_S).close()
    except (OSError, ValueError) as error:
        fix = f"Nothing answers there ({error}); write host:port of the cluster."
        raise InvalidInput("--address", address, fix) from None
