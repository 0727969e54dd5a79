"""Bytes that another process reads where they lie."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from torch.distributed import TCPStore

from services.protocol.weights.weight_bus import Transport
from services.transport.bucket import Encoded, whole
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.shared_memory import BufferPool, Mappings, SharedBuffer, memory_domain

from .test_gloo import HOST, make_link

READ = """
import sys
from services.transport.shared_memory import Mappings, Place, memory_domain
pid, fd, inode, offset, size = map(int, sys.argv[1:])
place = Place(pid=pid, fd=fd, inode=inode, offset=offset)
print(bytes(Mappings().read(place, size).tolist()).decode(), memory_domain())
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


class Source:
    """Two buckets in shared memory, one of which is changed after it was sent."""

    version, bucket_count = 3, 2

    def __init__(self) -> None:
        self.buffer = filled(b"first second")
        self.sent: list[int] = []

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        self.sent.append(bucket)
        first, last = ((0, 5), (6, 12))[bucket]
        return whole(self.buffer.bytes[first:last], self.buffer.place(first))


def open_both(timeout_s: float) -> tuple[GlooLink, GlooLink]:
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    link = replace(make_link(store, timeout_s=timeout_s), transport=Transport.SHARED_MEMORY)
    ends = GlooLink(link, HOST), GlooLink(link, HOST, member=1)
    opening = threading.Thread(target=ends[0].open)
    opening.start()
    ends[1].open()
    opening.join()
    return ends


def test_the_sender_goes_on_when_the_receiver_has_read() -> None:
    sender, receiver = open_both(timeout_s=300.0)
    source, sent = Source(), []
    sending = threading.Thread(target=lambda: sent.append(sender.send(source, None)))
    sending.start()
    receiver.ask(3, 0)
    for bucket, expected in enumerate((b"first", b"second")):
        got = receiver.receive_bucket(version=3, bucket=bucket, nbytes=len(expected))
        assert got.payload.numpy().tobytes() == expected
        assert source.sent == list(range(bucket + 1)), "the sender did not wait"
        receiver.release()
    sending.join(300)
    assert sent == [11]


def test_a_receiver_that_does_not_release_a_bucket_breaks_the_link_at_its_deadline() -> None:
    sender, receiver = open_both(timeout_s=0.5)
    broken: list[LinkBroken] = []

    def send() -> None:
        try:
            sender.send(Source(), None)
        except LinkBroken as error:
            broken.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    receiver.ask(3, 0)
    receiver.receive_bucket(version=3, bucket=0, nbytes=5)
    sending.join(300)
    assert len(broken) == 1


def test_no_name_is_left_in_the_shared_memory_folder() -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    buffer = filled(b"x" * 100)
    named = {name for name in os.listdir("/dev/shm") if "millrace" in name} if before else set()
    assert not named - before
    assert len(buffer.bytes) == 100
