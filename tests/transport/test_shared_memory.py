"""Bytes that another process reads where they lie."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import astuple, replace

import pytest
import torch
from torch.distributed import TCPStore

from services.protocol.weights.place import Place
from services.protocol.weights.weight_bus import Transport
from services.transport.bucket import Encoded
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.shared_memory import (
    BufferPool,
    HeldBuffer,
    Mappings,
    SharedBuffer,
    memory_domain,
)

from .test_gloo import HOST, make_link

READ = """
import sys
from services.transport.shared_memory import Mappings, Place, memory_domain
pid, fd, inode, offset, size = map(int, sys.argv[1:])
place = Place(pid=pid, fd=fd, inode=inode, offset=offset)
print(bytes(Mappings().read(place, size).tolist()).decode(), memory_domain())
"""


HOLD = """
import sys, threading
from services.transport.shared_memory import HeldBuffer, Place
pid, fd, inode, offset, serial = map(int, sys.argv[1:])
held = HeldBuffer(Place(pid=pid, fd=fd, inode=inode, offset=offset, serial=serial))
print("held", flush=True)
threading.Event().wait()
"""


def filled(text: bytes) -> SharedBuffer:
    buffer = SharedBuffer(len(text))
    buffer.bytes.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return buffer


def test_another_process_of_the_same_domain_reads_the_bytes() -> None:
    buffer = filled(b"the weights")
    place = buffer.place(4)
    numbers = map(str, [place.pid, place.fd, place.inode, place.offset, 7])
    command = [sys.executable, "-c", READ, *numbers]
    read = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert read.stdout.strip() == f"weights {memory_domain()}"


def test_a_buffer_that_is_gone_is_not_taken_for_the_one_that_got_its_descriptor() -> None:
    buffer = filled(b"old")
    place = buffer.place(0)
    del buffer
    heir = filled(b"new")
    assert heir.place(0).fd == place.fd, "the kernel gives the lowest free number"
    with pytest.raises(ValueError, match="gone"):
        Mappings().read(place, 3)


def test_bytes_beyond_the_buffer_are_refused() -> None:
    buffer = filled(b"abc")
    with pytest.raises(ValueError, match="end after"):
        Mappings().read(buffer.place(1), 3)


def test_memory_is_used_again_only_when_it_was_given_back() -> None:
    pool = BufferPool()
    first, second = pool.take(64), pool.take(64)
    assert first is not second
    pool.give(first)
    assert pool.take(65) is not first, "another size"
    pool.give(second)
    assert pool.take(64) is second


def test_a_buffer_that_another_holds_is_not_written_again() -> None:
    pool = BufferPool()
    first = pool.take(8)
    held = HeldBuffer(first.place(0))
    pool.give(first)
    second = pool.take(8)
    assert second is not first
    del held
    assert first.begin_writing(), "a hold ends with the object"
    pool.give(second)
    assert pool.take(8) is second


def test_the_hold_of_a_process_that_dies_ends_with_it() -> None:
    buffer = filled(b"the weights")
    assert buffer.begin_writing()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, astuple(buffer.place(0)))], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert not buffer.begin_writing()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert buffer.begin_writing()


def test_what_was_written_again_is_not_taken_for_what_was_there() -> None:
    buffer = BufferPool().take(8)
    place = buffer.place(0)
    assert HeldBuffer(place).place(0).serial == place.serial
    assert buffer.begin_writing()
    with pytest.raises(ValueError, match="written again"):
        HeldBuffer(place)
    assert HeldBuffer(buffer.place(0)).inode == place.inode


def test_a_held_buffer_can_be_mapped_when_its_owner_is_gone() -> None:
    buffer = filled(b"the weights")
    held = HeldBuffer(buffer.place(0))
    del buffer
    assert Mappings().read(held.place(4), 7).numpy().tobytes() == b"weights"


def test_buffers_that_are_written_in_turn_stay_mapped_and_others_do_not() -> None:
    mappings = Mappings()
    in_turn = [BufferPool().take(4) for _ in range(3)]
    first = [mappings.buffer(one.place(0)) for one in in_turn]
    assert [mappings.buffer(one.place(0)) for one in in_turn] == first
    other = filled(b"once")
    mappings.read(other.place(0), 4)
    assert mappings.buffer(in_turn[0].place(0)) is not first[0]


class Source:
    """A version in shared memory, or nowhere."""

    version, bucket_count = 3, 2

    def __init__(self, place: Place | None) -> None:
        self.place = place

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        raise AssertionError("nothing is sent")


@pytest.fixture
def ends() -> Iterator[tuple[GlooLink, GlooLink]]:
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    link = replace(make_link(store, timeout_s=300.0), transport=Transport.SHARED_MEMORY)
    ends = GlooLink(link, HOST), GlooLink(link, HOST, member=1)
    opening = threading.Thread(target=ends[0].open)
    opening.start()
    ends[1].open()
    opening.join()
    yield ends
    for one in ends:
        one.close()


def test_a_sender_says_where_its_bytes_lie_and_sends_none(ends: tuple[GlooLink, GlooLink]) -> None:
    sender, receiver = ends
    place, sent = BufferPool().take(8).place(0), []
    sending = threading.Thread(target=lambda: sent.append(sender.send(Source(place), None)))
    sending.start()
    assert receiver.receive_place(3) == place
    sending.join(300)
    assert sent == [0]


def test_a_sender_whose_bytes_others_cannot_map_breaks_the_link(
    ends: tuple[GlooLink, GlooLink],
) -> None:
    sender, receiver = ends
    broken: list[LinkBroken] = []

    def send() -> None:
        try:
            sender.send(Source(None), None)
        except LinkBroken as error:
            broken.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    with pytest.raises(RuntimeError):
        receiver.receive_place(3)
    sending.join(300)
    assert "no memory that others can map" in str(broken[0])


def test_no_name_is_left_in_the_shared_memory_folder() -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    buffer = filled(b"x" * 100)
    named = {name for name in os.listdir("/dev/shm") if "millrace" in name} if before else set()
    assert not named - before
    assert len(buffer.bytes) == 100
