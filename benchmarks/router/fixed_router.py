"""The router in front of engines that never change, behind Ray Serve.

    python -m benchmarks.router.fixed_router --port 8000 --engines http://... --model mock

Ends when its standard input does.
"""

import asyncio
import sys

from ray import serve
from ray.serve.config import HTTPOptions

from benchmarks.report import options_of
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.router.app import Router
from services.router.config import RouterConfig

LEASE_S = 30.0


class FixedTable:
    """A weight bus whose members always hold leases."""

    def __init__(self, engines: list[str], model: str) -> None:
        self._members = tuple(
            Member(
                replica_id=f"engine-{number}",
                address=engine,
                state=ReplicaState.LIVE,
                committed_version=3,
                leased=True,
                model=model,
                max_model_len=1024,
                pid=1,
            )
            for number, engine in enumerate(engines)
        )

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """The one table there is."""
        if revision >= 0:
            await asyncio.sleep(wait_s)
        return MemberTable(
            bus_id="fixed",
            revision=0,
            newest_version=3,
            lease_s=LEASE_S,
            members=self._members,
            trainer_ready=True,
            pushes=1,
        )


def run(config: RouterConfig, table: FixedTable, port: int) -> None:
    """Run the router as a Serve application on a cluster of its own."""

    class FixedRouter(Router):
        def bus(self) -> FixedTable:
            return table

    with PrivateCluster(num_cpus=2) as cluster:
        cluster.start()
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
        deployment = serve.deployment(
            name="router", max_ongoing_requests=1_000_000, ray_actor_options={"num_cpus": 0.1}
        )(serve.ingress()(FixedRouter))
        serve.run(deployment.bind(config), name="router", route_prefix="/")
        sys.stdin.read()
        serve.shutdown()


def main() -> None:
    """Read the command line and serve."""
    options = options_of(
        __doc__,
        port=(int, "of Serve's proxy"),
        own_port=(int, "where the router listens, as shipped"),
        engines=[""],
        model=str,
    ).parse_args()
    changes = {"listen": {"port": options.own_port}} if options.own_port else {}
    table = FixedTable(options.engines, options.model)
    run(RouterConfig.model_validate(changes), table, options.port)


if __name__ == "__main__":
    main()
