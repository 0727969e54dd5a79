"""The receiving end as a whole: its memory, its links, and versions that are called off."""

import asyncio
import gc
import threading
import weakref
from dataclasses import replace

import pytest
import torch

from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import SendWeights
from services.transport.bucket import Kind
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.peer_sender import PATIENCE, StagedSource
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import Mappings, SharedBuffer
from services.transport.staged_version import StagedVersion, StageFailed
from services.transport.version_bytes import VersionBytes, block_bytes

from .sender import HOST, Fault, Sender

DEADLINE_S = 300.0


def tensors(first: float = 0.0) -> dict[str, torch.Tensor]:
    return {"a.weight": torch.arange(64.0).view(8, 8), "b.bias": torch.full((5,), float(first))}


async def receive(
    receiver: VersionReceiver, sender: Sender, version: int, *, epoch: str = "e"
) -> None:
    order, payloads = sender.order(tensors(version), version, epoch, target_bytes=64)
    sender.send(order, payloads)
    async with asyncio.timeout(DEADLINE_S):
        await receiver.receive(order)


async def test_another_process_can_map_the_version_that_is_staged(sender: Sender) -> None:
    receiver = VersionReceiver(HOST)
    order, payloads = sender.order(tensors(7), 3, "e", target_bytes=64)
    sender.send(order, payloads)
    await receiver.receive(order)
    mapped = Mappings().read(receiver.staged_at(), block_bytes(order.manifest))
    found = dict(VersionBytes(order.manifest, mapped).named_tensors())
    assert all(torch.equal(found[name], one) for name, one in tensors(7).items())


async def test_two_versions_in_turn_use_the_same_memory(sender: Sender) -> None:
    receiver = VersionReceiver(HOST)
    await receive(receiver, sender, 3)
    first = receiver.staged_at()
    receiver.keep()
    await receive(receiver, sender, 4)
    assert receiver.staged_at() == first


async def test_a_kept_copy_is_not_written_to_and_can_be_given_to_others(sender: Sender) -> None:
    receiver, joiner = VersionReceiver(HOST, keeps_copy=True), VersionReceiver(HOST)
    await receive(receiver, sender, 3)
    receiver.keep()
    await receive(receiver, sender, 4)
    order, _ = sender.order(tensors(3), 3, "peer", target_bytes=64)
    sends = [receiver.send(SendWeights(version=3, link=link)) for link in order.links]
    _, *sent = await asyncio.gather(joiner.receive(order), *sends)
    assert sum(sent) == order.manifest.total_bytes


async def test_a_version_that_is_not_kept_is_given_to_nobody(sender: Sender) -> None:
    receiver = VersionReceiver(HOST)
    await receive(receiver, sender, 3)
    receiver.keep()
    with pytest.raises(LinkBroken, match="version 3 is not here"):
        await receiver.send(SendWeights(version=3, link=sender.link(0, "peer")))


async def test_a_version_that_is_called_off_hangs_up_on_every_sender(sender: Sender) -> None:
    receiver = VersionReceiver(HOST)
    order, payloads = sender.order(tensors(), 3, "e", target_bytes=64)
    gate, reached = threading.Event(), threading.Event()

    def hold(bucket: int) -> None:
        if bucket == 1:
            reached.set()
            gate.wait(DEADLINE_S)

    sender.send(order, payloads, before_bucket=hold)
    receiving = asyncio.create_task(receiver.receive(order))
    assert await asyncio.to_thread(reached.wait, DEADLINE_S)
    receiving.cancel()
    await asyncio.wait({receiving})
    gate.set()
    assert receiving.cancelled()
    await asyncio.to_thread(sender.join)
    sender.errors.clear()  # of those that had not sent everything
    await receive(receiver, sender, 4, epoch="f")


async def test_a_version_that_fails_leaves_the_copy_and_takes_the_next(sender: Sender) -> None:
    receiver = VersionReceiver(HOST, keeps_copy=True)
    await receive(receiver, sender, 3)
    receiver.keep()
    order, payloads = sender.order(tensors(4), 4, "e", target_bytes=64)
    sender.send(order, payloads, Fault(corrupt_bucket=1))
    with pytest.raises(StageFailed, match="digest of bucket 1"):
        await receiver.receive(order)
    await asyncio.to_thread(sender.join)
    sender.groups.clear()
    sender.errors.clear()
    order, payloads = sender.order(tensors(4), 4, "f", target_bytes=64)
    sender.send(order, payloads)
    await receiver.receive(replace(order, base=None))
    with pytest.raises(ValueError, match=r"base: 9 -> The copy here is of version 3"):
        await receiver.receive(replace(order, base=9))


async def test_a_failed_send_and_a_failed_attempt_hold_no_memory(sender: Sender) -> None:
    """Not even until Python looks for circles of objects, which may be long."""
    gc.collect()
    gc.disable()
    try:
        receiver = VersionReceiver(HOST, keeps_copy=True)
        order, payloads = sender.order(tensors(3), 3, "e", target_bytes=64)
        sender.send(order, payloads, Fault(corrupt_bucket=1))
        with pytest.raises(StageFailed):
            await receiver.receive(order)
        await asyncio.to_thread(sender.join)
        sender.groups.clear()
        sender.errors.clear()
        await receive(receiver, sender, 4, epoch="f")
        receiver.keep()
        nobody = replace(sender.link(0, "nobody"), timeout_s=0.2)
        with pytest.raises(LinkBroken, match="not met"):
            await receiver.send(SendWeights(version=4, link=nobody))
        assert receiver._copy is not None
        memory = weakref.ref(receiver._copy.buffer)
        receiver.forget()
        async with asyncio.timeout(DEADLINE_S):
            while memory() is not None:  # noqa: ASYNC110  (threads end unannounced)
                await asyncio.sleep(0.01)  # a thread that ends
    finally:
        gc.enable()


async def test_a_link_that_is_being_opened_holds_no_version(sender: Sender) -> None:
    """Or each fault would keep one more model in the memory of the node."""
    gc.collect()
    gc.disable()
    try:
        receiver = VersionReceiver(HOST, keeps_copy=True)
        await receive(receiver, sender, 4)
        receiver.keep()
        nobody = replace(sender.link(0, "nobody"), timeout_s=DEADLINE_S)
        sending = asyncio.create_task(receiver.send(SendWeights(version=4, link=nobody)))
        await asyncio.sleep(0)  # it begins
        assert list(receiver._sends) == [nobody.prefix]
        assert receiver._copy is not None
        memory = weakref.ref(receiver._copy.buffer)
        receiver.forget()
        async with asyncio.timeout(DEADLINE_S / 2):
            while memory() is not None:  # noqa: ASYNC110  (threads let go unannounced)
                await asyncio.sleep(0.01)
        assert not sending.done()
        arrived = GlooLink(nobody, HOST, 1)  # which closes when it is forgotten
        await asyncio.to_thread(arrived.open)
        with pytest.raises(LinkBroken, match="superseded"):
            await sending
        arrived.close()
    finally:
        gc.enable()


async def test_a_worker_of_an_engine_passes_bytes_through_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, sender: Sender
) -> None:
    opened: list[object] = []

    def make_link(*given: object) -> object:
        opened.append(given)
        raise LinkBroken("noted")

    monkeypatch.setattr("services.transport.receiver.make_link", make_link)
    gpu = torch.device("cuda", 5)  # not the current one of a receiving thread
    receiver = VersionReceiver(HOST, device=gpu)
    order, _ = sender.order(tensors(), 3, "e")
    with pytest.raises(StageFailed, match="noted"):
        await receiver.receive(order)
    assert (order.links[0], HOST, 1, gpu) in opened


async def test_a_relay_passes_buckets_on_while_it_receives(sender: Sender) -> None:
    first = VersionReceiver(HOST, keeps_copy=True, shared=True)
    second = VersionReceiver(HOST)
    order, payloads = sender.order(tensors(3), 3, "a", target_bytes=64)
    onward, _ = sender.order(tensors(3), 3, "b", target_bytes=64)
    sends = [
        asyncio.create_task(first.send(SendWeights(version=3, link=link))) for link in onward.links
    ]
    receiving = asyncio.create_task(second.receive(onward))
    gate, reached = threading.Event(), threading.Event()

    def hold(bucket: int) -> None:
        if bucket == 1:
            reached.set()
            gate.wait(DEADLINE_S)

    sender.send(order, payloads, before_bucket=hold)
    arriving = asyncio.create_task(first.receive(order))
    assert await asyncio.to_thread(reached.wait, DEADLINE_S)
    assert not receiving.done(), "the rest has not come"
    gate.set()
    await asyncio.gather(arriving, receiving, *sends)
    assert sum(send.result() for send in sends) == order.manifest.total_bytes


async def test_a_second_attempt_goes_on_behind_what_has_arrived(sender: Sender) -> None:
    receiver = VersionReceiver(HOST)
    order, payloads = sender.order(tensors(3), 3, "a", target_bytes=64)
    sender.send(order, payloads, Fault(corrupt_bucket=1))
    with pytest.raises(StageFailed, match="digest of bucket 1"):
        await receiver.receive(order)
    await asyncio.to_thread(sender.join)
    sender.asked.clear()
    again, payloads = sender.order(tensors(3), 3, "b", target_bytes=64)
    sender.send(again, payloads)
    await receiver.receive(again)
    assert max(sender.asked) >= 1, "the first bucket was not sent again"


async def test_several_links_of_a_rank_divide_its_buckets_and_another_number_goes_on_behind_them(
    sender: Sender,
) -> None:
    receiver, onward = VersionReceiver(HOST, keeps_copy=True, shared=True), VersionReceiver(HOST)
    given = {f"t{index}.weight": torch.full((8,), float(index)) for index in range(7)}
    order, payloads = sender.order(given, 3, "a", target_bytes=16, stripes=3)
    assert [(link.trainer_rank, link.stripe) for link in order.links] == [
        (rank, stripe) for rank in range(2) for stripe in range(3)
    ]
    sender.send(order, payloads, Fault(corrupt_bucket=4))
    with pytest.raises(StageFailed, match="digest of bucket 4"):
        await receiver.receive(order)
    await asyncio.to_thread(sender.join)
    sender.groups.clear()
    again, payloads = sender.order(given, 3, "b", target_bytes=16, stripes=2)
    sender.send(again, payloads)
    await receiver.receive(again)
    passed, _ = sender.order(given, 3, "c", target_bytes=16, stripes=2)
    sends = [receiver.send(SendWeights(version=3, link=link)) for link in passed.links]
    _, *sent = await asyncio.gather(onward.receive(passed), *sends)
    assert sorted(sent) == [48, 48, 64, 64], "four of seven buckets on the first link of each rank"
    mapped = Mappings().read(onward.staged_at(), block_bytes(passed.manifest))
    found = dict(VersionBytes(passed.manifest, mapped).named_tensors())
    assert all(torch.equal(found[name], one) for name, one in given.items())


async def test_a_version_that_the_node_has_no_memory_for_is_refused_before_the_first_byte(
    monkeypatch: pytest.MonkeyPatch, sender: Sender
) -> None:
    receiver = VersionReceiver(HOST, keeps_copy=True)
    await receive(receiver, sender, 3)
    receiver.keep()
    monkeypatch.setattr("services.transport.receiver.free_memory", lambda: 300)
    sender.asked.clear()
    order, _ = sender.order(tensors(4), 4, "e", target_bytes=64)
    with pytest.raises(InvalidInput, match=r"0 MiB free.*shared memory") as caught:
        await receiver.receive(order)
    assert caught.value.field == "memory"
    assert sender.asked == []
    assert receiver.copy is not None
    assert receiver.copy.version == 3
    monkeypatch.setattr("services.transport.receiver.free_memory", lambda: 400)
    await receive(receiver, sender, 4, epoch="f")


async def test_a_version_in_place_of_another_needs_no_free_memory(
    monkeypatch: pytest.MonkeyPatch, sender: Sender
) -> None:
    relay = VersionReceiver(HOST, keeps_copy=True, shared=True)
    await receive(relay, sender, 3)
    relay.keep()
    monkeypatch.setattr("services.transport.receiver.free_memory", lambda: 0)
    order, payloads = sender.order(tensors(4), 4, "e", target_bytes=64)
    sender.send(order, payloads)
    await relay.receive(replace(order, in_place=True))


async def test_a_version_in_place_of_another_takes_no_more_memory(sender: Sender) -> None:
    relay = VersionReceiver(HOST, keeps_copy=True, shared=True)
    await receive(relay, sender, 3)
    relay.keep()
    held = relay.place
    order, payloads = sender.order(tensors(4), 4, "e", target_bytes=64)
    sender.send(order, payloads)
    await relay.receive(replace(order, in_place=True))
    relay.keep()
    assert relay.place == held


def test_a_relay_that_waits_itself_says_so_and_not_for_ever(sender: Sender) -> None:
    order, _ = sender.order(tensors(), 3, "e")
    empty = StagedVersion(order.manifest, SharedBuffer(block_bytes(order.manifest)))
    source = StagedSource(empty, rank=0, link_timeout_s=0.04)
    answers = iter(lambda: source.encoded(0, None).kind, Kind.FULL)
    seen: list[Kind] = []
    with pytest.raises(LinkBroken, match="bucket 0 has not come"):
        seen.extend(answers)
    assert set(seen) == {Kind.WAIT}
    assert len(seen) == pytest.approx(4 * PATIENCE, abs=1)
