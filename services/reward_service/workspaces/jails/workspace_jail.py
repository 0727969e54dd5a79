"""The jail of one workspace, seen from the service: its start, the orders to it, and its end."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from services.observability.log import Log
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.isolation.jail import WORKSPACE, jailed_sources
from services.reward_service.sandbox.execution import sealed_file
from services.reward_service.sandbox.slot import Control
from services.reward_service.workspaces.errors import JailLost, WorkspaceFault
from services.reward_service.workspaces.jails import processes
from services.reward_service.workspaces.jails.folder import WorkspaceFolder
from services.reward_service.workspaces.jails.jail_settings import JailSettings
from services.reward_service.workspaces.jails.own_user import OwnUser
from services.reward_service.workspaces.jails.side_thread import off_loop
from services.reward_service.workspaces.network.proxy import WorkspaceProxy

_END_S, _IN_ORDER_S = 30.0, 5.0
"""For processes to end once they are killed, and for the first one to end the others."""

_log = Log("workspaces")


class WorkspaceJail:
    """Starts the first process of a jail, gives it one order at a time, and ends it.

    Jails are started from the event loop's own thread: the kernel ends one together with the
    thread that started it.

    Attributes:
        disk: bytes that its files take, and bytes that are free.
        cpu_s: processor seconds of its orders, as far as their processes have ended.
    """

    def __init__(self, settings: JailSettings, spec: OpenWorkspace) -> None:
        self.name = f"millrace-workspace-{secrets.token_hex(8)}"
        self.agent = 0
        self.disk = [0, 0]
        self.cpu_s = 0.0
        self.proxy_socket: socket.socket | None = None
        self.proxy: WorkspaceProxy | None = None
        self.spec = spec
        self._settings = settings
        self._jail = settings.jail
        self._control = Control()
        self._handle = self._errors = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._user: OwnUser | None = None
        self._folder: WorkspaceFolder | None = None
        self._calls = 0

    @property
    def handle(self) -> int:
        """A pidfd of the first process."""
        return self._handle

    @property
    def folder(self) -> WorkspaceFolder | None:
        """Its folder on the host; None where it has a file system of its own."""
        return self._folder

    @property
    def tier(self) -> Literal["A", "B"]:
        """`A` with namespaces, `B` without."""
        return "A" if self._jail.namespaces else "B"

    @property
    def path(self) -> str:
        """Where its programs find the workspace."""
        return self._settings.path(None if self._folder is None else self._folder.path)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every program."""
        return self._settings.environment(self.spec, self.path, self.name)

    async def start(self) -> None:
        """Start it and wait until it is confined.

        Raises:
            WorkspaceFault: it cannot be started here.
        """
        passing, passed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hello: dict[str, Any] = {}
        try:
            with passed:
                self._begin(passed.fileno())
            message, process = await self._control.receive(self._settings.config.start_s)
            if message:
                self._handle, self.agent = os.pidfd_open(process), process
            hello = json.loads(message or b'{"failed": "no answer"}')
            if "failed" not in hello and self.spec.network:
                self.proxy_socket = _received_socket(passing)
        except TimeoutError:
            start_s = self._settings.config.start_s
            hello = {
                "failed": f"its jail did not start in start_s = {start_s:g} s, the node is busy: "
                "lower starts_at_once and starts_per_s, or raise start_s"
            }
        except (OSError, ValueError) as error:
            hello = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            passing.close()
        if self._has_ended() and "failed" not in hello:
            hello = {"failed": "it ended while it was started"}
        if "failed" in hello:
            said = self._said()
            raise WorkspaceFault(": ".join(part for part in (hello["failed"], said) if part))
        self.disk = hello["disk"]
        if self._folder is not None:
            await self._measure(self._folder)

    def _begin(self, passed: int) -> None:
        if os.geteuid() == 0:
            self._user = OwnUser()
        if not self._settings.own_file_system:
            self._folder = WorkspaceFolder(self._settings.folders / self.name)
            self._folder.make(None if self._user is None else self._user.id)
        self._errors = os.memfd_create("workspace-errors", os.MFD_CLOEXEC)
        with self._control.theirs as theirs:
            folder = None if self._folder is None else self._folder.path
            mounts = self._settings.mounts(self.spec, folder)
            self._process = self._jail.start(theirs, self.name, self._errors, mounts=mounts)
        user_id = None if self._user is None else self._user.id
        settings = self._settings.for_agent(self.spec, self.path, self.name, user_id)
        self._control.send(json.dumps(jailed_sources(WORKSPACE)).encode())
        self._send(settings, [passed])

    async def call(
        self, order: dict[str, Any], descriptors: Sequence[int], timeout_s: float
    ) -> dict[str, Any]:
        """Give an order and wait until it is carried out.

        It lies in a memory file: a message of a socket may not be as long as a command.

        Raises:
            JailLost: the jail died or did not answer in time.
            WorkspaceFault: no process could be made or confined.
            OSError: there is no memory for the order; nothing was sent.
        """
        self._calls += 1
        file = sealed_file(json.dumps(order).encode())
        try:
            self._send({"do": "call", "call": self._calls}, [file, *descriptors])
            message, _ = await self._control.receive(timeout_s)
            reply = json.loads(message) if message else {}
        except (OSError, TimeoutError, ValueError) as error:
            raise JailLost(f"{type(error).__name__}: {error}") from error
        finally:
            os.close(file)
        if not reply:
            raise JailLost("the jail hung up")
        if "failed" in reply:
            raise WorkspaceFault(reply["failed"])
        self.cpu_s += reply["cpu_s"]
        if self._folder is None:
            self.disk = reply["disk"]
        elif order.get("changes", True):
            await self._measure(self._folder)
        return reply

    async def _measure(self, folder: WorkspaceFolder) -> None:
        """Used and free bytes of a folder, as a file system would say them."""
        used = await off_loop(folder.used)
        self.disk = [used, max(0, (self.spec.disk_mb << 20) - used)]

    def check_node(self) -> None:
        """Look whether what failed for want of space is nothing that the workspace did.

        Raises:
            WorkspaceFault: it has no file system of its own, and that of the node is full.
        """
        if self._folder is not None and self._folder.node_is_full():
            raise WorkspaceFault("the disk of the node is full")

    def end_call(self, how: str) -> None:
        """Have the running call ended: `kill`, or `freeze` for the kept interpreter."""
        with contextlib.suppress(OSError):  # it has hung up, as the call will find
            self._send({"do": "end", "call": self._calls, "how": how}, [])

    def kill(self) -> None:
        """End the first process; a running call then fails.

        With namespaces every other ends with it. A guard above it is left to end the others.
        """
        kills = [self._kill_agent] if self._is_guarded else [self._kill_agent, self._kill_process]
        for kill in kills:
            with contextlib.suppress(ProcessLookupError):
                kill()

    async def end(self) -> None:
        """End every process of it; a running call fails then. Safe to call again."""
        if self.proxy is not None:
            await self.proxy.close()
        if not self._jail.namespaces:
            # The first process ends all others and waits for them; only then it ends itself.
            self._control.hang_up()
            await self._wait(_IN_ORDER_S)
        self.kill()
        await self._wait(_END_S)
        process, self._process = self._process, None
        if process is None:
            return
        loop = asyncio.get_running_loop()
        try:
            code = await loop.run_in_executor(None, process.wait, _END_S)
        except subprocess.TimeoutExpired:
            _log.warning("workspace_not_ended", jail=self.name, process=process.pid)
            process.kill()
            code = -signal.SIGKILL
        # bubblewrap ties its child to itself only once the mounts are made.
        if code != 0 and (not self._jail.namespaces or self._handle < 0):
            user_id = None if self._user is None or self._jail.namespaces else self._user.id
            orphans = partial(processes.kill_orphans, self.name, user_id)
            if left := await loop.run_in_executor(None, orphans):
                _log.warning("workspace_processes_left", jail=self.name, processes=left)

    async def release(self) -> None:
        """Give back all that it holds, when no call runs any more; safe to call again."""
        self._control.close()
        if self.proxy_socket is not None:
            self.proxy_socket.close()
            self.proxy_socket = None
        for descriptor in (self._handle, self._errors):
            if descriptor >= 0:
                os.close(descriptor)
        self._handle = self._errors = -1
        if self._folder is not None:
            folder, self._folder = self._folder, None
            try:
                await asyncio.get_running_loop().run_in_executor(None, folder.remove)
            except OSError as error:
                _log.warning("workspace_folder_left", folder=str(folder.path), reason=str(error))
        if self._user is not None:
            self._user.release()
            self._user = None

    async def _wait(self, timeout_s: float) -> None:
        """Wait until the first process has ended."""
        if self._handle >= 0:
            await _wait_for(self._handle, timeout_s)

    def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        self._control.send(json.dumps(message).encode(), descriptors)

    def _kill_agent(self) -> None:
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    @property
    def _is_guarded(self) -> bool:
        """Whether a process above the first one ends what that one leaves (`jailed.workspace`)."""
        return self._handle >= 0 and self._user is None and not self._jail.namespaces

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _said(self) -> str:
        """The last line of what the jail wrote to its standard error."""
        if self._errors < 0:
            return ""
        text = os.pread(self._errors, 4096, 0).decode(errors="replace")
        return (text.strip().splitlines() or [""])[-1]


def _received_socket(passing: socket.socket) -> socket.socket:
    """The listening socket that the agent sent."""
    passing.setblocking(False)
    _, descriptors, _, _ = socket.recv_fds(passing, 1, 1, socket.MSG_CMSG_CLOEXEC)
    listening = socket.socket(fileno=descriptors[0])
    listening.setblocking(False)
    return listening


async def _wait_for(handle: int, timeout_s: float) -> None:
    """Wait until the process of a pidfd has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    watched = os.dup(handle)  # its owner may watch the handle itself

    def has_ended() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(watched, has_ended)
    try:
        await asyncio.wait([ended], timeout=timeout_s)
    finally:
        loop.remove_reader(watched)
        os.close(watched)
