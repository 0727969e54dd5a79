"""Stands in for Ray's worker scripts: asks a fork server for the worker and ends.

A script of the standard library in place of both `setup_worker.py`, which the raylet starts, and
`default_worker.py`, which that one becomes. Where no fork server answers, or the worker's runtime
environment changes more than the stage, the worker starts as Ray would have started it.
"""

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path

FOLDER_VARIABLE = "MILLRACE_FORK_SERVERS"
"""Environment variable with the folder of the fork servers' sockets."""

JOB, NO_JOB = "01000000", "ffffffff"
"""The first job of a Ray is that of the program which started it. Ray reads a worker's job when
it is imported, so a fork server has workers for this one only, and those that may be for any."""

_STAGE = "MILLRACE_FORK_STAGE"  # as in services/warm_workers.py, which costs an import
_ANSWER_S = 240.0
"""A fork server answers when its imports are done; the raylet waits longer for a worker."""
_SET_UP, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


def asked(arguments: list[str], script: str) -> tuple[str, list[str]] | None:
    """The stage and the arguments of the worker; None for one with an environment of its own.

    Args:
        arguments: those of `setup_worker.py`: the worker's script, its arguments, and its own.
        script: which stands for the worker's.
    """
    own = [one for one in arguments if one == script or one.startswith(_SET_UP)]
    context = json.loads(next((one[len(_SET_UP) :] for one in own if one != script), "{}"))
    variables = context.pop("env_vars", None) or {}
    python = context.pop("py_executable", None) or sys.executable
    other_job = os.environ.get("RAY_JOB_ID") not in (JOB, NO_JOB)
    if other_job or any(context.values()) or python != sys.executable or set(variables) - {_STAGE}:
        return None
    rest = [one for one in arguments if one not in own and not one.startswith(_LANGUAGE)]
    return variables.get(_STAGE, "worker"), rest


def forked(stage: str, arguments: list[str]) -> bool:
    """Whether the stage's fork server has started the worker."""
    job = json.dumps({"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()})
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_ANSWER_S)
            server.connect(str(Path(os.environ[FOLDER_VARIABLE]) / stage))
            socket.send_fds(server, [b"\0"], [0, 1, 2])
            server.sendall(job.encode())
            server.shutdown(socket.SHUT_WR)
            return server.recv(16) != b""
    except (OSError, KeyError):
        return False


def start_as_ray_does(arguments: list[str], script: str) -> None:
    """Become the worker that Ray would have started."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None, "this runs in Ray's environment"
    assert spec.submodule_search_locations is not None
    workers = Path(spec.submodule_search_locations[0]) / "_private" / "workers"
    worker = str(workers / "default_worker.py")
    rest = [worker if one == script else one for one in arguments]
    os.execv(sys.executable, [sys.executable, str(workers / "setup_worker.py"), *rest])


def main() -> None:
    """Hand this worker over."""
    script, arguments = sys.argv[0], sys.argv[1:]
    wanted = asked(arguments, script)
    if wanted is None or not forked(*wanted):
        start_as_ray_does(arguments, script)


if __name__ == "__main__":
    main()
