"""What counts as a rank's sign of life, and that ranks can be sent to other processes."""

import hashlib
import threading

import ray
from ray import cloudpickle

from services.trainer.heartbeat import (
    Heartbeat,
    cpu_seconds,
    name_torch_thread,
    writeback_bytes,
)
from services.trainer.rank.rank import TrainerRank


class Rank:
    """A heartbeat whose clock and counters a test moves."""

    def __init__(self, device: str = "cpu") -> None:
        self.now, self.cpu, self.io, self.writeback = 0.0, 0.0, 0, 0
        self.beat = Heartbeat(
            lambda: self.now, lambda: self.cpu, lambda: self.io, lambda: self.writeback
        )
        self.beat.follow(device)

    def quiet_after(
        self, seconds: float, *, cpu: float = 0.0, io: int = 0, writeback: int = 0
    ) -> float:
        self.now, self.cpu, self.io = self.now + seconds, self.cpu + cpu, self.io + io
        self.writeback += writeback
        return self.beat.report().quiet_s


class Event:
    """A point in the work of a device."""

    passed = False

    def query(self) -> bool:
        return self.passed


def test_marks_and_phases_are_signs_of_life_and_silence_is_not() -> None:
    rank = Rank()
    rank.beat.enter("micro-batch", 1, 4)
    assert rank.quiet_after(10) == 0
    rank.beat.mark()
    assert rank.quiet_after(10) == 0
    assert rank.quiet_after(10) == 10
    assert rank.quiet_after(10) == 20


def test_a_long_kernel_on_the_cpu_is_alive_and_a_wait_for_a_peer_is_not() -> None:
    rank = Rank()
    rank.beat.enter("micro-batch", 1, 1)
    rank.quiet_after(1)
    assert rank.quiet_after(10, cpu=0.6) == 0
    assert rank.quiet_after(10, cpu=0.01) == 10


def test_on_a_gpu_finished_work_counts_and_a_spinning_thread_does_not() -> None:
    rank, first, second = Rank("cuda"), Event(), Event()
    rank.beat.enter("micro-batch", 1, 1)
    rank.quiet_after(1)
    rank.beat.mark(first)
    rank.beat.mark(second)
    assert rank.quiet_after(10, cpu=10) == 10
    first.passed = True
    assert rank.quiet_after(10, cpu=10) == 0
    assert rank.quiet_after(10, cpu=10) == 10
    second.passed = True
    assert rank.quiet_after(10, cpu=10) == 0


def test_on_a_gpu_the_cpu_counts_where_it_has_the_work() -> None:
    rank = Rank("cuda")
    rank.beat.enter("micro-batch", 1, 1)
    rank.beat.compiling(True)
    rank.quiet_after(1)
    assert rank.quiet_after(10, cpu=5) == 0
    rank.beat.compiling(False)
    rank.quiet_after(1)
    assert rank.quiet_after(10, cpu=5) == 10
    rank.beat.enter("loading")
    rank.quiet_after(1)
    assert rank.quiet_after(10, cpu=5) == 0


def test_an_optimizer_step_in_host_memory_is_work_of_the_cpu() -> None:
    rank = Rank("cuda")
    rank.beat.follow("cuda", steps_on_host=True)
    for phase, quiet in (("micro-batch", 10), ("optimizer", 0)):
        rank.beat.enter(phase)
        rank.quiet_after(1)
        assert rank.quiet_after(10, cpu=5) == quiet


def test_bytes_are_a_sign_of_life_where_files_are_read_or_written() -> None:
    rank = Rank("cuda")
    rank.beat.loading(1 << 20, 1 << 30)
    rank.quiet_after(1)
    assert rank.quiet_after(10, io=1 << 20) == 10  # as much as a process's own reports
    assert rank.quiet_after(10, io=10 << 20) == 0
    report = rank.beat.report()
    assert (report.phase, report.done, report.total) == ("loading", 1 << 20, 1 << 30)


def test_what_the_node_brings_to_disk_is_a_sign_of_life_of_a_rank_that_saves() -> None:
    rank = Rank("cuda")
    for phase, quiet in (("loading", 10), ("saving", 0), ("micro-batch", 10)):
        rank.beat.enter(phase)
        rank.quiet_after(1)
        assert rank.quiet_after(10, writeback=100 << 20) == quiet
    rank.beat.enter("saving")
    rank.quiet_after(1)
    assert rank.quiet_after(10, writeback=10 << 20) == 10  # as much as logs


def test_the_kernel_counts_what_it_brings_to_disk() -> None:
    before = writeback_bytes()
    assert 0 < before <= writeback_bytes()


def test_cpu_time_of_torchs_thread_and_of_those_it_makes_is_counted() -> None:
    used: list[float] = []

    def hash_a_lot() -> None:
        for _ in range(40):
            hashlib.blake2b(bytes(4 << 20))

    def torch_thread() -> None:
        name_torch_thread()
        before = cpu_seconds()
        child = threading.Thread(target=hash_a_lot)
        child.start()
        while child.is_alive():
            used.append(cpu_seconds() - before)
            child.join(0.05)

    thread = threading.Thread(target=torch_thread)
    thread.start()
    thread.join()
    assert max(used) > 0


def test_the_class_of_a_rank_can_be_sent_to_other_processes() -> None:
    actor = ray.remote(TrainerRank)
    cloudpickle.dumps(actor.__ray_metadata__.modified_class)
