"""Receiving a version over real Gloo links, without an engine."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from services.protocol.weight_bus import Link, StageWeights
from services.rollout_server.weight_link import WeightLink
from services.rollout_server.weight_staging import StagedVersion

from .conftest import HOST, Fault, Sender

DEADLINE_S = 10.0


def tensors() -> dict[str, torch.Tensor]:
    """Shapes that do not divide by two, and one with fewer rows than ranks."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (7, 5), "a.bias": (7,), "b.weight": (1, 9), "c.weight": (32, 32)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def stage(order: StageWeights) -> StagedVersion:
    links: dict[str, WeightLink] = {}

    def open_link(link: Link) -> WeightLink:
        return links.setdefault(link.prefix, WeightLink(link, worker_rank=0, host=HOST))

    return StagedVersion(order.manifest, order.links, open_link)


def wait_until(condition: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "deadline"
        pause.wait(0.005)


def test_shards_of_all_ranks_become_the_full_tensors_bit_for_bit(sender: Sender) -> None:
    expected = tensors()
    order, payloads = sender.order(expected, 3, "e", target_bytes=32)
    assert any(order.manifest.bucket_bytes(1, b) == 0 for b in range(len(order.manifest.buckets)))
    sender.send(order, payloads)
    staged = stage(order)
    wait_until(lambda: staged.complete or staged.error)
    assert staged.error is None
    received = dict(staged.named_tensors())
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
    staged = stage(order)
    wait_until(lambda: staged.error)
    assert complaint in str(staged.error)
    assert not staged.complete


def test_a_sender_that_never_comes_is_an_error_at_the_links_deadline(sender: Sender) -> None:
    order, _ = sender.order(tensors(), 3, "e")
    links = tuple(replace(link, timeout_s=0.2) for link in order.links)
    staged = stage(replace(order, links=links))
    wait_until(lambda: staged.error)
    assert not staged.complete


def test_an_abandoned_version_is_never_complete(sender: Sender) -> None:
    order, payloads = sender.order(tensors(), 3, "e", target_bytes=64)
    gate, reached = threading.Event(), threading.Event()

    def hold(bucket: int) -> None:
        if bucket == 1:
            reached.set()
            gate.wait(DEADLINE_S)

    sender.send(order, payloads, before_bucket=hold)
    staged = stage(order)
    assert reached.wait(DEADLINE_S)
    staged.abandon()
    gate.set()
    assert staged.error == "abandoned"
    assert not staged.complete


def test_links_that_do_not_match_the_ranks_are_refused(sender: Sender) -> None:
    order, _ = sender.order(tensors(), 3, "e")
    with pytest.raises(ValueError, match="1 links for 2 trainer ranks"):
        StagedVersion(order.manifest, order.links[:1], lambda link: pytest.fail("opened"))
