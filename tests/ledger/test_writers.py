"""A ledger has one writer: a second one is refused, and one that was stopped writes nothing."""

import json
import multiprocessing
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from services.ledger import writer_lease
from services.ledger.ledger import Ledger, reading
from services.ledger.ledger_file import LedgerTaken
from services.ledger.sample_group import Prompt
from services.ledger.writer_lease import LEASE_S, LedgerHeld, lease_path
from services.protocol.errors import InvalidInput
from tests.mounts import pretend_mounts

_FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def on_network(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_mounts(monkeypatch, tmp_path_factory.mktemp("mounts") / "mountinfo", "/ nfs4 vers=4.2")


@pytest.fixture
def quick_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, timeout=0.01))


def on_local_disk(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    pretend_mounts(monkeypatch, path.with_name("mountinfo"), "/ ext4 rw")


def admit(ledger: Ledger) -> None:
    place = ledger.next_position()
    ledger.admit([Prompt(position=place, epoch=0, task_id="t")], version=1)


def run_out(path: Path) -> None:
    """As after `LEASE_S` in which the holder renewed nothing."""
    at = lease_path(path).stat().st_mtime - LEASE_S - 1
    os.utime(lease_path(path), (at, at))


@contextmanager
def process(
    work: Callable[[Path, Connection], None], path: Path
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Another process that has done the first part of its work."""
    here, there = _FORK.Pipe()
    child = _FORK.Process(target=work, args=(path, there), daemon=True)
    child.start()
    there.close()
    try:
        assert here.poll(300)
        here.recv()
        yield child, here
    finally:
        child.kill()
        child.join()
        here.close()


def write_when_asked(path: Path, asked: Connection) -> None:
    """Admit a group, and one more whenever asked; tells what came of it."""
    ledger = Ledger(path)
    admit(ledger)
    asked.send("")
    while True:
        asked.recv()
        try:
            admit(ledger)
            asked.send("")
        except LedgerTaken as error:
            asked.send(str(error))


def stop(child: BaseProcess) -> None:
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)


def test_a_writer_that_was_stopped_cannot_write_after_another_took_over(
    path: Path, each_file_system: str
) -> None:
    with process(write_when_asked, path) as (child, ask):
        stop(child)
        if each_file_system == "nfs4":
            with pytest.raises(LedgerHeld):
                Ledger(path)
            run_out(path)
        with closing(Ledger(path)) as ledger:
            admit(ledger)
            os.kill(child.pid or 0, signal.SIGCONT)
            ask.send("")
            assert ask.poll(300)
            said = ask.recv()
            assert f"{path} has another writer" in said
            if each_file_system == "nfs4":
                assert f"process {os.getpid()} on {socket.gethostname()}" in said
            admit(ledger)
            assert ledger.counts().admitted == 3, "nothing of the other's came in between"


def stay_in_a_transaction(path: Path, told: Connection) -> None:
    ledger = Ledger(path)
    with ledger.transaction():
        ledger.execute("UPDATE account SET groups = 7")
        told.send("")
        told.recv()


@pytest.mark.usefixtures("on_network")
def test_nobody_takes_over_from_a_writer_that_was_stopped_in_a_transaction(
    path: Path, quick_to_give_up: None
) -> None:
    with process(stay_in_a_transaction, path) as (child, _):
        stop(child)
        run_out(path)
        with pytest.raises(InvalidInput, match=r"another process has it locked") as refused:
            Ledger(path)
        assert refused.value.value == str(path)
    with closing(Ledger(path)) as ledger:
        assert ledger.imbalance() == 0


@pytest.mark.usefixtures("each_file_system")
def test_what_waited_in_memory_is_not_written_after_another_took_over(path: Path) -> None:
    first = Ledger(path)
    first._go_on_in_memory([("SELECT 1", ())])
    admit(first)
    lease_path(path).unlink(missing_ok=True)
    with closing(Ledger(path)) as second:
        with pytest.raises(LedgerTaken):
            first.catch_up()
        assert first.taken
        first.close()
        admit(second)
        assert second.counts().admitted == 1


@pytest.mark.usefixtures("on_network")
def test_a_second_writer_is_refused_by_the_name_of_the_first(path: Path) -> None:
    with closing(Ledger(path)) as first:
        name = f"process {os.getpid()} on {socket.gethostname()} writes it"
        with pytest.raises(LedgerHeld, match=name):
            Ledger(path)
        admit(first)
    Ledger(path).close()
    assert not list(path.parent.glob("*.writer*")), "the lease goes with its writer"


@pytest.mark.usefixtures("on_network")
def test_a_writer_of_another_machine_holds_the_ledger_until_its_lease_has_run_out(
    path: Path,
) -> None:
    with process(write_when_asked, path) as (child, _):
        child.kill()
        child.join()
        lease = json.loads(lease_path(path).read_text())
        lease_path(path).write_text(json.dumps(lease | {"machine": "another", "host": "far"}))
        with pytest.raises(LedgerHeld, match=f"process {child.pid} on far"):
            Ledger(path)
        run_out(path)
        with closing(Ledger(path)) as ledger:
            assert ledger.counts().admitted == 1


@pytest.mark.usefixtures("on_network")
def test_a_lease_is_renewed_while_its_writer_lives(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_lease, "_RENEWED_EVERY_S", 0.01)
    with closing(Ledger(path)):
        run_out(path)
        past, deadline = lease_path(path).stat().st_mtime, time.monotonic() + 300
        while lease_path(path).stat().st_mtime == past:
            assert time.monotonic() < deadline
        with pytest.raises(LedgerHeld):
            Ledger(path)


@pytest.mark.usefixtures("on_network")
def test_a_lease_without_a_holder_yet_is_held(path: Path) -> None:
    lease_path(path).touch()
    with pytest.raises(LedgerHeld, match="another process writes it"):
        Ledger(path)
    assert not list(path.parent.glob(".*")), "the refused one leaves nothing"


@pytest.mark.usefixtures("on_network")
def test_of_two_that_take_over_the_same_lease_one_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_wal = Ledger._leave_wal

    def late(self: Ledger) -> None:
        lease_path(path).write_text(json.dumps({"host": "far", "pid": "1", "token": "theirs"}))
        leave_wal(self)

    monkeypatch.setattr(Ledger, "_leave_wal", late)
    with pytest.raises(LedgerHeld):
        Ledger(path)
    assert "theirs" in lease_path(path).read_text()


def kill_in_a_transaction(path: Path, told: Connection) -> None:
    """Parts of a transaction are in the file when the process is killed."""
    ledger = Ledger(path)
    admit(ledger)
    ledger.connection.execute("PRAGMA cache_size = 1")
    ledger.connection.execute("PRAGMA cache_spill = ON")
    told.send("")
    with ledger.transaction():
        ledger.execute("UPDATE account SET groups = 1000")
        for group in range(1000):
            ledger.execute("INSERT INTO results VALUES (?, ?)", (group, bytes(4000)))
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_in_a_transaction_loses_nothing_that_was_committed(
    path: Path, each_file_system: str
) -> None:
    with process(kill_in_a_transaction, path) as (child, _):
        child.join()
    if each_file_system == "nfs4":
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as plain,
            pytest.raises(sqlite3.OperationalError, match="readonly"),
        ):
            plain.execute("SELECT 1 FROM groups")
    before = path.read_bytes()
    with reading(path) as read:
        assert (read.counts().admitted, read.imbalance()) == (1, 0)
        assert not read.finished()
    assert path.read_bytes() == before, "a reader only reads"
    with closing(Ledger(path)) as ledger:
        assert (ledger.counts().admitted, ledger.imbalance()) == (1, 0)
        admit(ledger)


def test_a_ledger_in_wal_mode_is_converted_with_all_that_its_wal_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_local_disk(monkeypatch, path)
    with process(write_when_asked, path) as (child, _):
        child.kill()
        child.join()
    wal = path.with_name("ledger.sqlite-wal")
    assert wal.stat().st_size
    shared_memory = path.with_name("ledger.sqlite-shm")
    shared_memory.unlink()
    shared_memory.mkdir()  # so that nobody can use it
    pretend_mounts(monkeypatch, path.with_name("mountinfo"), "/ nfs4 vers=4.2")
    with closing(Ledger(path)) as ledger:
        assert (ledger.journal_mode, ledger.counts().admitted) == ("persist", 1)
        assert not wal.exists()
        admit(ledger)
    shared_memory.rmdir()
    on_local_disk(monkeypatch, path)
    with closing(Ledger(path)) as ledger:
        assert (ledger.journal_mode, ledger.counts().admitted) == ("wal", 2)


def test_a_ledger_that_a_process_has_open_in_wal_mode_is_not_converted(
    path: Path, monkeypatch: pytest.MonkeyPatch, quick_to_give_up: None
) -> None:
    on_local_disk(monkeypatch, path)
    with process(write_when_asked, path) as (_, ask):
        pretend_mounts(monkeypatch, path.with_name("mountinfo"), "/ nfs4 vers=4.2")
        with pytest.raises(InvalidInput, match=r"WAL mode, .* end that process") as refused:
            Ledger(path)
        assert refused.value.value == str(path)
        assert not lease_path(path).exists()
        ask.send("")
        assert ask.poll(300)
        assert not ask.recv(), "the one that has it goes on"


def test_a_mount_whose_locks_stay_on_one_host_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_mounts(monkeypatch, path.with_name("mountinfo"), "/ nfs vers=3,nolock,local_lock=none")
    with pytest.raises(InvalidInput, match="mounted with nolock"):
        Ledger(path)
    assert not path.exists()
