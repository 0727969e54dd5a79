"""Receiving a version over real Gloo links, without an engine."""

import contextlib
import threading
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from services.protocol.weights.weight_bus import Link, SendWeights, StageWeights
from services.protocol.weights.weights import changed_unit
from services.transport.bucket import NOT_YET, Encoded, Kind, changes, whole
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.peer_sender import PeerSender
from services.transport.shared_memory import SharedBuffer
from services.transport.staged_version import StagedVersion, StageFailed
from services.transport.version_bytes import block_bytes
from tests.resident_memory import most_added

from .sender import HOST, Fault, Sender

DEADLINE_S = 300.0


def tensors() -> dict[str, torch.Tensor]:
    """Shapes that do not divide by two, and one with fewer rows than ranks."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (7, 5), "a.bias": (7,), "b.weight": (1, 9), "c.weight": (32, 32)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def open_link(link: Link) -> GlooLink:
    opened = GlooLink(link, HOST, member=1)
    opened.open()
    return opened


def stage(
    order: StageWeights, base: StagedVersion | None = None
) -> tuple[StagedVersion, Future[float]]:
    buffer = SharedBuffer(block_bytes(order.manifest))
    staged = StagedVersion(order.manifest, buffer, base=base)
    return staged, staged.receive(order.links, open_link)


def receive_all(order: StageWeights, base: StagedVersion | None = None) -> StagedVersion:
    staged, attempt = stage(order, base)
    attempt.result(DEADLINE_S)
    assert staged.complete
    return staged


def problem(staged: StagedVersion, attempt: Future[float]) -> str:
    error = attempt.exception(DEADLINE_S)
    assert isinstance(error, StageFailed)
    assert not staged.complete
    return str(error)


def test_shards_of_all_ranks_become_the_full_tensors_bit_for_bit(sender: Sender) -> None:
    expected = tensors()
    order, payloads = sender.order(expected, 3, "e", target_bytes=32)
    assert any(order.manifest.bucket_bytes(1, b) == 0 for b in range(len(order.manifest.buckets)))
    sender.send(order, payloads)
    staged = receive_all(order)
    received = dict(staged.bytes.named_tensors())
    assert list(received) == list(expected)
    assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (Fault(corrupt_bucket=1), "digest of bucket 1"),
        (Fault(announce_version=9), "header is"),
        (Fault(die_before_bucket=1), "trainer rank 0"),
    ],
    ids=["digest mismatch", "wrong version", "sender death"],
)
def test_a_version_that_does_not_arrive_whole_is_never_complete(
    sender: Sender, fault: Fault, complaint: str
) -> None:
    order, payloads = sender.order(tensors(), 3, "e", target_bytes=64)
    sender.send(order, payloads, fault)
    assert complaint in problem(*stage(order))


def test_a_sender_that_never_comes_is_an_error_at_the_links_deadline(sender: Sender) -> None:
    order, _ = sender.order(tensors(), 3, "e")
    links = tuple(replace(link, timeout_s=0.2) for link in order.links)
    assert "trainer rank" in problem(*stage(replace(order, links=links)))


def test_an_abandoned_version_is_never_complete(sender: Sender) -> None:
    order, payloads = sender.order(tensors(), 3, "e", target_bytes=64)
    gate, reached = threading.Event(), threading.Event()

    def hold(bucket: int) -> None:
        if bucket == 1:
            reached.set()
            gate.wait(DEADLINE_S)

    sender.send(order, payloads, before_bucket=hold)
    staged, attempt = stage(order)
    assert reached.wait(DEADLINE_S)
    staged.stop()
    gate.set()
    assert problem(staged, attempt) == "abandoned"


def test_a_version_takes_the_memory_of_its_tensors_and_little_more(sender: Sender) -> None:
    """As the sizing counts it for each that an engine stages or keeps."""
    order, payloads = sender.order(
        {f"{index}.weight": torch.randn(512, 512) for index in range(320)}, 3, "e"
    )
    with most_added() as found:
        sender.send(order, payloads)
        receive_all(order)
    assert found == pytest.approx([320 * 512 * 512 * 4], rel=0.1)


def test_links_that_do_not_match_the_ranks_are_refused(sender: Sender) -> None:
    order, _ = sender.order(tensors(), 3, "e")
    with pytest.raises(ValueError, match="1 links for 2 trainer ranks"):
        stage(replace(order, links=order.links[:1]))


WAITS = 2
"""Times that a sender has no bucket yet."""


class Changes:
    """One rank's bytes of a version, sent as changes onto the version before, after a while."""

    def __init__(
        self, version: int, new: list[torch.Tensor], old: list[torch.Tensor], unit: int = 4
    ) -> None:
        self.version, self.bucket_count, self._unit = version, len(new), unit
        self._new, self._old = new, old
        self.kinds: list[Kind] = []

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        assert base is not None
        new = self._new[bucket]
        got = (
            NOT_YET
            if len(self.kinds) < WAITS
            else changes(new, self._old[bucket], base, self._unit) or whole(new)
        )
        self.kinds.append(got.kind)
        return got


def send(order: StageWeights, sources: list[Changes], base: int) -> list[threading.Thread]:
    def run(link: Link, source: Changes) -> None:
        end = GlooLink(link, HOST)
        # The receiver may hang up on what it refuses.
        with contextlib.suppress(LinkBroken):
            end.open()
            end.send(source, base)

    threads = [
        threading.Thread(target=run, args=pair) for pair in zip(order.links, sources, strict=True)
    ]
    for thread in threads:
        thread.start()
    return threads


def two_versions(sender: Sender) -> tuple[StagedVersion, StageWeights, list[Changes]]:
    """A version that is here, and the order and the changes of the next one."""
    before, after = tensors(), tensors()
    after["c.weight"][3, 4] += 1
    after["a.weight"] += 1
    first, old = sender.order(before, 3, "e", target_bytes=64)
    sender.send(first, old)
    held = receive_all(first)
    order, new = sender.order(after, 4, "f", target_bytes=64)
    return held, order, [Changes(4, *pair) for pair in zip(new, old, strict=True)]


def test_changes_onto_the_version_that_is_here_become_the_very_bytes(sender: Sender) -> None:
    held, order, sources = two_versions(sender)
    threads = send(order, sources, base=3)
    staged = receive_all(order, base=held)
    assert {kind for source in sources for kind in source.kinds} == set(Kind) - {Kind.PLACED}
    expected = tensors()
    expected["c.weight"][3, 4] += 1
    expected["a.weight"] += 1
    received = dict(staged.bytes.named_tensors())
    assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())
    for thread in threads:
        thread.join(DEADLINE_S)


def test_changes_of_a_version_with_two_element_types_become_the_very_bytes(
    sender: Sender,
) -> None:
    before = {
        "gate.bias": torch.randn(9),
        "gate.weight": torch.randn(9, 5).bfloat16(),
        "up.weight": torch.randn(64, 8).bfloat16(),
    }
    after = {name: one.clone() for name, one in before.items()}
    after["gate.bias"][7] += 1
    after["up.weight"][20, 3] += 1
    first, old = sender.order(before, 3, "e")
    sender.send(first, old)
    held = receive_all(first)
    order, new = sender.order(after, 4, "f")
    unit = changed_unit(order.manifest.tensors)
    sources = [Changes(4, *pair, unit) for pair in zip(new, old, strict=True)]
    threads = send(order, sources, base=3)
    received = dict(receive_all(order, base=held).bytes.named_tensors())
    assert {source.kinds[-1] for source in sources} == {Kind.DELTA}
    assert {name: one.dtype for name, one in received.items()} == {
        name: one.dtype for name, one in after.items()
    }
    assert all(torch.equal(received[name], one) for name, one in after.items())
    for thread in threads:
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("announced", [2, 3])
def test_changes_onto_another_version_or_onto_nothing_are_refused(
    sender: Sender, announced: int
) -> None:
    held, order, sources = two_versions(sender)
    threads = send(order, sources, base=announced)
    attempt = stage(order, base=held if announced == 2 else None)
    assert f"changes onto version {announced} came" in problem(*attempt)
    for thread in threads:
        thread.join(DEADLINE_S)


def test_a_copy_gives_another_replica_every_ranks_bytes(sender: Sender) -> None:
    held, _, _ = two_versions(sender)
    order, _ = sender.order(tensors(), 3, "peer", target_bytes=64)
    orders = [SendWeights(version=3, link=link) for link in order.links]
    senders = [PeerSender(one, held, HOST) for one in orders]
    receive_all(order)
    sent = [one.done.result(DEADLINE_S) for one in senders]
    assert sum(sent) == order.manifest.total_bytes
