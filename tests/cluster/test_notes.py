"""Ray's key-value store, which is private to it, does what `services.cluster_kv` needs of it."""

from services.cluster_kv import ClusterNote
from tests.cluster.conftest import Cluster


async def test_a_note_is_what_was_written_last_until_it_is_erased(cluster: Cluster) -> None:
    note, same = ClusterNote("test_notes"), ClusterNote("test_notes")
    assert await note.read() is None
    await note.write("first")
    await note.write("zweitens: ü")
    assert await same.read() == "zweitens: ü"
    await same.erase()
    await same.erase()
    assert await note.read() is None
