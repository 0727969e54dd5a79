"""One jailed fork server, seen from the service, and the socket to it."""

import asyncio
import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.reward_service.isolation.jail import SLOT, Jail, jailed_sources
from services.reward_service.isolation.seccomp_filter import SeccompFilter
from services.reward_service.off_loop import off_loop
from services.reward_service.sandbox.execution import (
    Execution,
    Outcome,
    SlotFailed,
    SlotLost,
    ToolMissing,
    opened_anew,
    read_outcomes,
    sealed_file,
)

_log = Log("reward_service")

_ANSWER_GRACE_S = 120.0
"""For a slot to confine a process and to answer: only a hang takes longer."""
_CLOSE_S = 60.0
_BATCH_S = 0.1
"""After which no further process of an order is begun: an answer whose tests take long is looked at
after each, as one that fails need not be run on."""

_MESSAGE_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("=iII")
"""`struct ucred` of unix(7): process, user and group id, as the receiver sees them."""


class Control:
    """Sends messages with descriptors and waits for the answers.

    The event loop watches the socket from its first answer to its end: to begin and end watching
    for every answer costs more than all else that the service does for a short test.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hung_up = False
        self._answer: asyncio.Future[tuple[bytes, int]] | None = None

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one message.

        Raises:
            OSError: the other end is gone, or its buffer is full.
        """
        socket.send_fds(self._ours, [message], list(descriptors))

    async def receive(self, timeout_s: float) -> tuple[bytes, int]:
        """One message and the process id of its sender; empty if the other end is closed.

        Raises:
            TimeoutError: nothing came.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._ours, self._on_readable)
        if self._hung_up:
            return b"", 0
        self._answer = self._loop.create_future()
        answer = self._answer
        # Not asyncio.timeout, which prefers the deadline where the loop comes late to both.
        await asyncio.wait([answer], timeout=timeout_s)
        if not answer.done():
            raise TimeoutError(f"no answer in {timeout_s:g} s")
        return answer.result()

    def hang_up(self) -> None:
        """Tell the other end that no more comes; a call that waits gets an empty message."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and give back the descriptors."""
        self._stop_watching()
        self._ours.close()
        self.theirs.close()

    def _on_readable(self) -> None:
        try:
            message, extras, _, _ = self._ours.recvmsg(
                _MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
        except BlockingIOError:
            return
        except OSError:
            message, extras = b"", []
        if not message:
            self._hung_up = True
            self._stop_watching()
        senders = [_CREDENTIALS.unpack(data)[0] for _, _, data in extras]
        # A message that no call waits for is dropped: only a broken slot sends one.
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((message, senders[0] if senders else 0))

    def _stop_watching(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._loop.remove_reader(self._ours)


class Slot:
    """Starts its fork server, gives it one execution at a time, and ends it.

    Slots are started from the event loop's own thread: the kernel ends a jail together with
    the thread that started it.
    """

    def __init__(self, jail: Jail, seccomp: SeccompFilter, *, start_s: float) -> None:
        self.name = f"millrace-slot-{secrets.token_hex(6)}"
        self.landlock_abi = 0
        self._jail, self._seccomp, self._start_s = jail, seccomp, start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Control | None = None
        self._server = -1  # pidfd of the fork server: behind bubblewrap not our child
        self._errors = -1
        self._payload: tuple[bytes, int] = (b"", -1)
        self._kinds: list[str] = []
        self._was_started = False

    @property
    def alive(self) -> bool:
        """Whether an execution can be given to it."""
        return self._server >= 0 and not _ended(self._server, 0.0)

    async def start(self) -> None:
        """Start, or start anew, and wait until the fork server is confined.

        Raises:
            SlotFailed: it cannot start here, with its error.
        """
        self.close()
        if self._was_started:
            RewardMetrics.slot_restarts.inc()
        self._was_started = True
        self._control = control = Control()
        self._errors = os.memfd_create("slot-errors", os.MFD_CLOEXEC)
        try:
            with control.theirs as theirs, self._lent() as lent:
                self._process = self._jail.start(theirs, self.name, self._errors, lent=lent)
            settings = {**self._jail.settings(self._seccomp), "launcher": lent}
            self._kinds = list(settings["kinds"])
            control.send(json.dumps(jailed_sources(SLOT)).encode())
            control.send(json.dumps(settings).encode())
            message, process_id = await control.receive(self._start_s)
            if message:
                self._server = os.pidfd_open(process_id)
        except (OSError, TimeoutError) as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            self.close()
            raise
        hello = json.loads(message or b'{"failed": "no answer"}')
        if "failed" in hello:
            raise self._failure(hello["failed"])
        if "not_loaded" in hello:
            _log.warning("launcher_not_loaded", reason=hello["not_loaded"])
        self.landlock_abi = hello["landlock_abi"]

    @contextlib.contextmanager
    def _lent(self) -> Iterator[list[int]]:
        """The launcher's file, and the folder through which it is loaded; none without it."""
        lent: list[int] = []
        try:
            if self._jail.launcher:
                lent.append(sealed_file(self._jail.launcher))
                lent.append(os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            yield lent
        finally:
            _close_all(lent)

    def _failure(self, reason: str) -> SlotFailed:
        said = b""
        if self._errors >= 0:
            said = os.pread(self._errors, 4096, 0).strip()
        self.close()
        last_line = said.decode(errors="replace").splitlines()[-1:] or [""]
        return SlotFailed(": ".join(part for part in (reason, last_line[0]) if part))

    async def run(self, execution: Execution) -> list[Outcome]:
        """Run processes to their ends.

        Raises:
            SlotLost: the slot died or did not answer in time; it is closed.
            SlotFailed: no process could be made or confined.
        """
        return await self.end(execution, self.begin(execution))

    def begin(self, execution: Execution) -> int:
        """Have processes started; returns the file of their outputs, for `end` or `abandon`.

        Raises:
            SlotLost: the slot is dead; it is closed.
            ToolMissing: the language was installed after the slot was started.
        """
        if self._kinds and execution.kind not in self._kinds:
            raise ToolMissing(f"{execution.kind} came after the service started: restart it")
        outputs = os.memfd_create("slot", os.MFD_CLOEXEC)
        files = [sealed_file(b"".join((execution.stdin, *execution.more))), outputs]
        try:
            if self._control is None:
                raise SlotLost("the slot is closed")
            order = execution.order(self._kinds.index(execution.kind), begin_s=_BATCH_S)
            with self._code(execution) as code:
                self._control.send(order.encode(), [code, *files, *execution.lent])
        except (OSError, SlotLost) as error:
            self.abandon(outputs)
            raise SlotLost(f"{type(error).__name__}: {error}") from error
        finally:
            os.close(files[0])
        return outputs

    @contextlib.contextmanager
    def _code(self, execution: Execution) -> Iterator[int]:
        """The descriptor of what is run."""
        if execution.program is None:
            kept = execution.compiled
            yield self._sealed_payload(execution.payload) if kept is None else kept
        elif execution.launch is None:
            yield execution.program
        else:  # an interpreter reads it, while others may read it as well
            own = opened_anew(execution.program)
            try:
                yield own
            finally:
                os.close(own)

    async def end(self, execution: Execution, outputs: int) -> list[Outcome]:
        """Wait for what was begun: the processes up to the first that did not end well, or fewer.

        Raises:
            SlotLost: the slot died or did not answer in time; it is closed.
            SlotFailed: no process could be made or confined.
        """
        try:
            if self._control is None:  # closed meanwhile
                raise SlotLost("the slot is closed")
            patience_s = execution.wall_s + _BATCH_S + _ANSWER_GRACE_S
            answer, _ = await self._control.receive(patience_s)
            if not answer:
                raise SlotLost("the slot hung up")
            # One that is cancelled meanwhile closes the file: what is read then, nobody gets.
            size = os.fstat(outputs).st_size
            return await off_loop(size, read_outcomes, answer, outputs)
        except (OSError, TimeoutError, ValueError) as error:
            self.close()
            raise SlotLost(f"{type(error).__name__}: {error}") from error
        except (SlotLost, asyncio.CancelledError):
            self.close()
            raise
        finally:
            os.close(outputs)

    def abandon(self, outputs: int) -> None:
        """End the slot instead of waiting for what was begun."""
        self.close()
        os.close(outputs)

    def close(self) -> None:
        """End the fork server and whatever it runs; safe to call again."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._server, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait(_CLOSE_S)
            self._process = None
        if self._server >= 0:
            _ended(self._server, _CLOSE_S)
            os.close(self._server)
            self._server = -1
        for descriptor in (self._errors, self._payload[1]):
            if descriptor >= 0:
                os.close(descriptor)
        self._errors, self._payload = -1, (b"", -1)

    def _sealed_payload(self, payload: bytes) -> int:
        """Its memory file, the one of the last run if that was the same program.

        No process can change a sealed file, and an answer's code starts without it.
        """
        if self._payload[1] < 0 or self._payload[0] != payload:
            if self._payload[1] >= 0:
                os.close(self._payload[1])
            self._payload = payload, sealed_file(payload)
        return self._payload[1]


def _ended(process: int, timeout_s: float) -> bool:
    """Whether the process of a pidfd has ended, or ends within the time."""
    waiting = select.poll()  # not select(): a busy service has descriptors above 1023
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
