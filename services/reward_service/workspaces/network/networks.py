"""The network that workspaces ask for, within what the operator allows."""

import socket
from collections.abc import Sequence
from typing import Protocol

from services.observability.metrics import WorkspaceMetrics
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.network.addresses import NetworkRules
from services.reward_service.workspaces.network.proxy import ProxyLimits, Resolver, WorkspaceProxy


class _Jail(Protocol):
    """What a jail has for its network.

    Attributes:
        proxy_socket: listens inside of it; None where it has no network.
        proxy: what serves that socket, until the jail ends it.
    """

    proxy_socket: socket.socket | None
    proxy: WorkspaceProxy | None


class Networks:
    """Gives each workspace that may reach something a proxy.

    Args:
        config: what the operator allows.

    Raises:
        InvalidInput: a pattern of the operator's cannot be read.
    """

    def __init__(self, config: WorkspacesConfig) -> None:
        self._rules = NetworkRules(config.network, never=config.network_never)
        self._limits = ProxyLimits(
            connections=config.network_connections, total_bytes=config.network_mb << 20
        )
        self._resolver = Resolver()

    def check(self, asked: Sequence[str]) -> None:
        """Refuse what the operator does not allow.

        Raises:
            InvalidInput: naming it.
        """
        self._rules.grant(asked)

    def connect(self, jail: _Jail, spec: OpenWorkspace) -> None:
        """Serve the proxy of a jail that was just started."""
        listening, jail.proxy_socket = jail.proxy_socket, None
        if listening is None:
            return
        jail.proxy = WorkspaceProxy(
            self._rules.grant(spec.network),
            limits=self._limits,
            resolver=self._resolver,
            ended=_count,
        )
        jail.proxy.start(listening)

    def close(self) -> None:
        """Look no more names up."""
        self._resolver.close()


def _count(outcome: str, moved: int) -> None:
    WorkspaceMetrics.proxied.inc(1, {"outcome": outcome})
    WorkspaceMetrics.proxied_bytes.inc(moved)
