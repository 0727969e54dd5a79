"""Ray's key-value store, which is private to it, does what `services.cluster_kv` needs of it."""

from services.cluster_kv import ClusterValue
from tests.cluster.conftest import Cluster


async def test_a_value_is_what_was_written_last_until_it_is_erased(cluster: Cluster) -> None:
    value, same = ClusterValue("test_cluster_kv"), ClusterValue("test_cluster_kv")
    assert await value.read() is None
    await value.write("first")
    await value.write("zweitens: ü")
    assert await same.read() == "zweitens: ü"
    await same.erase()
    await same.erase()
    assert await value.read() is None
