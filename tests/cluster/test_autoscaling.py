"""Serve starts and ends rollout servers as a run wishes."""

from pathlib import Path

from ray import serve

from services.rollout_server.app import scaling, stats
from services.rollout_server.config import RolloutServerConfig
from tests.cluster.conftest import Cluster


def test_serve_keeps_as_many_replicas_as_are_wished_for(cluster: Cluster, tmp_path: Path) -> None:
    wish = tmp_path / "wish"
    wish.write_text("2")
    options = scaling(RolloutServerConfig(model="none", replicas=1, max_replicas=2))

    @serve.deployment(name="told", ray_actor_options={"num_cpus": 0}, **options)
    class Told:
        """What of a rollout server speaks to Serve, without its engine."""

        def record_autoscaling_stats(self) -> dict[str, float]:
            return stats(int(wish.read_text()))

    def running() -> int:
        deployment = serve.status().applications["told"].deployments["told"]
        return deployment.replica_states.get("RUNNING", 0)

    try:
        serve.run(Told.bind(), name="told", route_prefix=None)
        cluster.wait_for(lambda: running() == 2, "a second replica")
        wish.write_text("1")
        cluster.wait_for(lambda: running() == 1, "one replica again")
    finally:
        serve.delete("told")
