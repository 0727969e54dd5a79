"""Proves at start-up that a workspace's jail holds, by what attacks from inside it achieve."""

from pathlib import Path

from services.protocol.reward.workspaces import PythonCall
from services.reward_service.jailed import probe
from services.reward_service.workspaces.errors import WorkspaceFault
from services.reward_service.workspaces.running.programs import Programs

_SOURCE = Path(probe.__file__).read_text()
_ALLOWED = (
    *("fork", "exec", "socketpair", "write_here", "raise_limit"),
    *("signal_all", "shared_memory"),
)
"""What a shell needs. A signal to all reaches nobody outside, as the first process has seen; memory
that is shared is held by what the service sees of it."""
_ALLOWED_IN_NAMESPACES = ("write_tmp",)
"""It is a folder of the workspace there."""
_ATTACK = """
import signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
probe = {{"__name__": "probe"}}
exec({source!r}, probe)
tried = [name for name in probe["ATTACKS"] if name not in {allowed!r}]
managed = [name for name in tried if probe["succeeds"](probe["ATTACKS"][name])]
"managed: " + ", ".join(managed)
"""


async def prove(programs: Programs, *, namespaces: bool) -> None:
    """Run the attacks of `jailed.probe` in the kept interpreter, and close it.

    Raises:
        WorkspaceFault: some got through, or could not be tried.
    """
    allowed = (*_ALLOWED, *(_ALLOWED_IN_NAMESPACES if namespaces else ()))
    code = _ATTACK.format(source=_SOURCE, allowed=allowed)
    try:
        result = await programs.python(PythonCall(code=code), None)
    finally:
        programs.close()
    if result.result != "'managed: '":
        raise WorkspaceFault(f"self-test: {result.result or result.traceback or result.status}")
