"""What a rank can still send, and in which form."""

import torch

from services.trainer.snapshot.snapshot import Snapshot, SnapshotStore
from services.transport.bucket import Kind, apply_changes


def make_snapshot(version: int, *values: list[float]) -> Snapshot:
    buckets = tuple((torch.tensor(one).view(torch.uint8),) for one in values)
    return Snapshot(
        version=version,
        buckets=buckets,
        digests=("",) * len(values),
        itemsize=4,
    )


def test_the_store_keeps_the_newest_two_and_replaces_a_version_in_place() -> None:
    store = SnapshotStore(kept=2)
    for version in (1, 2, 3):
        store.put(make_snapshot(version, [4.0]))
    again = make_snapshot(3, [8.0])
    store.put(again)
    assert store.get(1) is None
    assert store.get(2) is not None
    assert store.get(3) is again
    assert store.source(1) is None


def test_a_receiver_that_holds_a_version_of_the_store_gets_what_changed() -> None:
    store = SnapshotStore()
    old, new = [float(i) for i in range(100)], [float(i) for i in range(100)]
    new[7] = -1.0
    store.put(make_snapshot(1, old, old))
    store.put(make_snapshot(2, new, old))
    source = store.source(2)
    assert source is not None
    assert (source.version, source.bucket_count) == (2, 2)
    changed, same = source.encoded(0, 1), source.encoded(1, 1)
    assert (changed.kind, changed.base, changed.payload.numel()) == (Kind.DELTA, 1, 8)
    assert (same.kind, same.payload.numel()) == (Kind.SAME, 0)
    bucket = torch.tensor(old).view(torch.uint8)
    apply_changes(changed, bucket, 4)
    assert bucket.view(torch.float32).tolist() == new
    assert source.encoded(0, 1) is changed, "found again for every link"


def test_a_receiver_of_an_unknown_base_or_of_none_gets_everything() -> None:
    store = SnapshotStore()
    store.put(make_snapshot(1, [1.0] * 50))
    store.put(make_snapshot(2, [1.0] * 50))
    source = store.source(2)
    assert source is not None
    assert {source.encoded(0, base).kind for base in (None, 0, 7)} == {Kind.FULL}
