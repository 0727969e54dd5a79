"""Two workspaces of one node: neither learns of the other, nor of the host, nor harms them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from services.protocol.reward.workspaces import CallResult, ExecCall, PythonCall
from services.reward_service.workspaces.errors import UnknownWorkspace
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.workspaces.attacks import GOT_THROUGH
from tests.redteam.workspaces.between_two import HARMS, LOOKS, NEIGHBOUR, NEIGHBOUR_SECRET
from tests.redteam.workspaces.conftest import Open

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.asyncio(loop_scope="session"),
]
READY_S = 120.0


class Neighbour:
    """A workspace with a call that goes on until it is told to stop."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._ready = asyncio.Event()
        call = ExecCall(argv=["python3", "-c", NEIGHBOUR, NEIGHBOUR_SECRET], wall_s=3600)
        self._call = asyncio.create_task(workspace.exec(call, self._on_output))

    def _on_output(self, stream: str, data: bytes) -> None:
        if b"ready" in data:
            self._ready.set()

    async def ready(self) -> None:
        """Until it is there to be attacked."""
        ready = asyncio.ensure_future(self._ready.wait())
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait([ready, self._call], timeout=READY_S, return_when=first)
        ready.cancel()
        assert self._ready.is_set(), self._call

    def __repr__(self) -> str:
        return f"Neighbour({self._call})"

    @property
    def runs(self) -> bool:
        """Whether nothing has ended it."""
        return not self._call.done()


@pytest_asyncio.fixture(loop_scope="session")
async def neighbour(new_workspace: Open) -> AsyncIterator[Neighbour]:
    one = Neighbour(await new_workspace())
    await one.ready()
    yield one
    one._call.cancel()
    await asyncio.gather(one._call, return_exceptions=True)


@pytest.fixture
def host() -> AsyncIterator[dict[str, object]]:
    """What an attack is told of the host: more than any program would know."""
    own = psutil.Process()
    with socket.create_server(("0.0.0.0", 0)) as listening:
        yield {
            "host_port": listening.getsockname()[1],
            "host_address": _address(),
            "host_name": socket.gethostname(),
            "host_pids": [own.pid, *(child.pid for child in own.children(recursive=True))],
        }


async def test_a_workspace_learns_nothing_of_its_neighbour_or_of_the_host(
    new_workspace: Open, neighbour: Neighbour, host: dict[str, object]
) -> None:
    attacker = await new_workspace()
    got = []
    for name, code in LOOKS.items():
        code = _told(code, host)
        done = await attacker.exec(ExecCall(argv=["python3", "-c", code], wall_s=60))
        cell = await attacker.python(PythonCall(code=code, wall_s=60))
        shown = done.stdout + done.stderr
        if GOT_THROUGH in shown or NEIGHBOUR_SECRET in shown:
            got.append(f"{name} (exec): {shown[-300:]}")
        shown = f"{cell.stdout}{cell.stderr}{cell.result}"
        if GOT_THROUGH in shown or NEIGHBOUR_SECRET in shown:
            got.append(f"{name} (cell): {shown[-300:]}")
    assert got == []
    assert neighbour.runs


async def test_a_workspace_harms_neither_its_neighbour_nor_the_service(
    new_workspace: Open, neighbour: Neighbour, host: dict[str, object]
) -> None:
    attacker = await new_workspace(processes=32)
    for name, code in HARMS.items():
        code = _told(code, host)
        call = ExecCall(argv=["python3", "-c", code], wall_s=10, cpu_s=5)
        done = await attacker.exec(call)
        assert GOT_THROUGH not in done.stdout, (name, done)
        cell = await attacker.python(PythonCall(code=code, wall_s=10, cpu_s=5, restart=True))
        assert GOT_THROUGH not in cell.stdout, (name, cell)
        assert neighbour.runs, (name, neighbour)
    again = await attacker.python(PythonCall(code="6 * 7", restart=True))
    assert again.result == "42"
    await _unharmed(neighbour)


async def test_a_workspace_is_found_by_its_owner_alone(
    workspaces: Workspaces, new_workspace: Open
) -> None:
    one = await new_workspace()
    assert workspaces.find(one.id, owner="redteam") is one
    for owner, workspace_id in (("", one.id), ("other", one.id), ("redteam", f"{one.id}0")):
        with pytest.raises(UnknownWorkspace):
            workspaces.find(workspace_id, owner=owner)
    assert one not in workspaces.of("other")


async def test_no_two_workspaces_share_an_id_a_user_or_what_is_in_memory(
    new_workspace: Open,
) -> None:
    pair = [await new_workspace() for _ in range(2)]
    looks = "import os\n(os.getuid(), sorted(os.environ.items()))"
    first, second = [await one.python(PythonCall(code=looks)) for one in pair]
    assert pair[0].id != pair[1].id
    if os.geteuid() == 0:
        assert first.result != second.result, "users of their own"
    await pair[0].python(PythonCall(code="mark = 1"))
    done: CallResult = await pair[1].python(PythonCall(code="mark"))
    assert done.status == "failed"


async def _unharmed(neighbour: Neighbour) -> None:
    """It runs to its end, and says that its file is as it was."""
    # A call of the same workspace would wait for the one that runs: this one is of the service.
    assert neighbour.runs
    neighbour._call.cancel()
    await asyncio.gather(neighbour._call, return_exceptions=True)
    assert await neighbour.workspace.read("secret", max_bytes=64) == NEIGHBOUR_SECRET.encode()


def _told(code: str, host: dict[str, object]) -> str:
    for name, value in host.items():
        code = code.replace(f"{{{name}}}", str(value))
    return code


def _address() -> str:
    """An address of this machine's that is not its own loopback, if it has one."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    return "127.0.0.1"
