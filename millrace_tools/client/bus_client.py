"""The weight bus, asked from a shell.

Unlike every other command this joins the Ray cluster: the bus has no HTTP address, and who
may join the cluster may give it orders.
"""

import asyncio

from millrace_tools.client.joined_cluster import JoinedCluster
from services.peers import bus_peer
from services.protocol.weights.replica_control import ControlOutcome
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import Member

_CONTROL_S = 120.0  # a commit may come first


class BusClient(JoinedCluster):
    """The bus of a cluster; a context manager, see `JoinedCluster`."""

    def versions(self) -> tuple[VersionRecord, ...]:
        """What became of the newest versions.

        Raises:
            NotReady: the bus does not answer.
        """
        return asyncio.run(bus_peer().versions())

    def members(self) -> tuple[Member, ...]:
        """Every rollout server that the bus knows; errors as in `versions`."""
        return asyncio.run(bus_peer().watch(-1, 0.0)).members

    def control(self, replica_id: str, action: str, level: int | None) -> ControlOutcome:
        """Have a replica do something.

        Raises:
            InvalidInput: no such replica, action or level, or it cannot do that.
            ControlFailed: it failed, or said nothing in time.
            NotReady: the bus does not answer.
        """
        return asyncio.run(bus_peer().control(replica_id, action, level, _CONTROL_S))
