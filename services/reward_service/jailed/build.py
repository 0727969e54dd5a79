"""Runs a compiler, once, under limits of its own. See `sandbox/compiler.py`."""

import importlib
import json
import os
import socket
import sys
from typing import Any

from services.reward_service.jailed import confine

_FIRST_UNUSED_FD = 3


def main(control: socket.socket) -> None:
    """Confine this process, say so, run the compiler on the source received, and say how it
    ended: what goes wrong before the first message is nothing that a source did."""
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 2)
    order = json.loads(message)
    try:
        _confine(order)
        _say(control, {"confined": True})
        reply = _compile(order, descriptors)
    except OSError as error:
        reply = {"failed": str(error)}
    _say(control, reply)


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    os.write(control.fileno(), json.dumps(message).encode())  # no call of sockets is left to it


def _confine(order: dict[str, Any]) -> None:
    if order["pack"][0]:
        importlib.import_module("zipfile")  # while its folder can be entered
    _, ruleset = confine.create_ruleset(order["paths"])
    confine.drop_privileges(order["user_id"])
    os.chdir(order["folder"])
    confine.limit_resources(
        cpu_s=order["cpu_s"],
        address_space=order["memory"],
        file_size=order["output"],
        processes=order["processes"],
        stack=64 << 20,
    )
    program, own_pid_at = order["filter"]
    confine.seal(ruleset, bytes.fromhex(program), own_pid_at)
    os.close(ruleset)


def _compile(order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    source, errors = descriptors
    child = os.fork()
    if child == 0:
        try:
            nothing = os.open("/dev/null", os.O_RDWR)
            for number, descriptor in enumerate((source, nothing, errors)):
                os.dup2(descriptor, number)
            os.closerange(_FIRST_UNUSED_FD, 1 << 16)
            os.execve(order["command"][0], order["command"], order["environment"])
        except OSError as error:
            print(error, file=sys.stderr)  # noqa: T201 - its standard error is what is shown
        os._exit(127)
    _, status, usage = os.wait4(child, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    folder, archive = order["pack"]
    if folder and status == 0:
        _pack(folder, archive)
    return {"exit": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s}


def _pack(folder: str, archive: str) -> None:
    """Make one file of a folder that the compiler of a header has filled."""
    with sys.modules["zipfile"].ZipFile(archive, "w") as file:
        for place, _, names in os.walk(folder):
            for name in ("", *names):  # empty folders, too
                file.write(os.path.join(place, name))
