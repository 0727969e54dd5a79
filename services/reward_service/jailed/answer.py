"""Runs one answer in the process that was forked and confined for it.

Reports are lines on a file of their own. The answer's code can write there too, which gains
it nothing: a report is data to compare with values that never enter the jail.
"""

import _thread
import atexit
import builtins
import contextlib
import importlib
import logging
import marshal
import os
import posix
import random
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from services.reward_service.jailed.codec import (
    NotEncodable,
    as_plain,
    decode_call,
    encode,
    encode_call,
)
from services.reward_service.jailed.line_pipe import LinePipe, PeerClosed

VALUE, NOT_ENCODABLE, RAISED, UNCOMPILED, NO_MEMORY = "=", "?", "!", "C", "M"
"""First letter of a report line: a result, a result without a text, an exception in a call,
code that does not compile, memory used up. The first three also begin a reply to the tests of
another jail: a result and the arguments that the call changed, or an exception's class and message.
"""

PRELOADED = """
abc argparse array ast atexit base64 bisect calendar codecs collections collections.abc contextlib
contextvars copy copyreg ctypes dataclasses datetime decimal dis encodings.ascii encodings.latin_1
encodings.utf_16 encodings.utf_8_sig enum fractions functools gc getopt graphlib heapq inspect io
itertools json keyword linecache logging math numbers opcode operator pickle pprint queue random re
reprlib shlex signal statistics string struct textwrap threading token tokenize traceback types
typing warnings weakref _strptime
"""
"""Modules that are imported before the first fork, so that an answer finds them at no cost. Each
shared library costs every process some microseconds, so those are left out that answers seldom
import: it takes them milliseconds."""
_OWN_HANDLERS = len(logging._handlerList)  # type: ignore[attr-defined]
_MAX_CALL_BYTES = 1 << 30
_MAX_KEPT_BYTES = 1 << 16
Report = Callable[[str, str], None]


def run_answer(payload: dict[str, Any], report: Report, channel: tuple[int, int]) -> int:
    """Run `payload["source"]` and return the exit status, 0 to 255.

    With `payload["calls"]`, arguments as texts of `codec`, the function `entry_point` is called
    once for each and its results are reported, as `codec.as_plain` has them if asked; with None
    there, it answers the calls that come through `channel`; without, the source is a whole
    program, or `payload["code"]` is, as an earlier process kept it for `payload["keep"]`.
    """
    code = payload.get("code")
    if code is None:
        try:
            code = compile(payload["source"], "answer.py", "exec")
        except MemoryError:
            report(NO_MEMORY, "while compiling")
            return 1
        except (SyntaxError, ValueError, OverflowError, RecursionError) as error:
            report(UNCOMPILED, _one_line(error))
            return 1
        if payload.get("keep"):
            _keep(code, channel[0])
    # Dataclasses, pickling and annotations look a class's module up by its name.
    module = types.ModuleType("answer" if "calls" in payload else "__main__")
    sys.modules[module.__name__] = module
    sys.argv = ["answer.py"]
    if "calls" not in payload:
        return _run_program(code, module, report)
    find = partial(find_function, module, payload["entry_point"])
    try:
        exec(code, module.__dict__)
        if payload["calls"] is None:
            _serve_calls(find, LinePipe(*channel, max_bytes=_MAX_CALL_BYTES))
        else:
            _make_calls(find, payload, report)
    except MemoryError:
        report(NO_MEMORY, "while running")
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever an answer raises is its result
        report(RAISED, _one_line(error))
        return 1
    return 0


def _keep(code: types.CodeType, descriptor: int) -> None:
    """Keep code for the processes of further tests, before any of it runs; its size comes last."""
    try:
        payload = marshal.dumps({"code": code})
    except (ValueError, MemoryError):  # nested too deeply
        payload = b""
    payload += len(payload).to_bytes(8, "little")
    if len(payload) <= min(_MAX_KEPT_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[0]):
        with contextlib.suppress(OSError):  # no memory: the next process compiles it again
            os.pwrite(descriptor, payload, 0)
    os.close(descriptor)


def _run_program(code: types.CodeType, module: types.ModuleType, report: Report) -> int:
    status = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as stop:
        status = _exit_status(stop.code)
    except BaseException as error:  # noqa: BLE001 - whatever an answer raises is its result
        status = 1
        if isinstance(error, MemoryError):
            report(NO_MEMORY, "while running")
        traceback.print_exc()
    return _finish_program() or status


def _finish_program() -> int:
    """What the interpreter does at exit: wait for threads, run exit functions, flush."""
    try:
        for thread in threading.enumerate() if _thread._count() else ():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        if len(logging._handlerList) > _OWN_HANDLERS:  # type: ignore[attr-defined]
            logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a program that cannot finish has failed
        return 1
    return 0


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255
    print(code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1


def _make_calls(find: Callable[[], Any], payload: dict[str, Any], report: Report) -> None:
    for call in payload["calls"]:
        function = find()
        positional, named = decode_call(call)
        result = function(*positional, **named)
        try:
            report(VALUE, encode(as_plain(result) if payload["as_plain"] else result))
        except NotEncodable as odd:
            report(NOT_ENCODABLE, str(odd))


def _serve_calls(find: Callable[[], Any], pipe: LinePipe) -> None:
    """Make the calls of tests in another jail until they hang up.

    The answer's code learns the arguments and nothing else. Whatever it sends is data that the
    tests' side reads into plain values.

    Raises:
        MemoryError: a call used it up.
    """
    while True:
        try:
            pipe.send(_reply(find, pipe.receive()))
        except PeerClosed:
            return


def _reply(find: Callable[[], Any], call: str) -> str:
    positional, named = decode_call(call)
    try:
        result = as_plain(find()(*positional, **named))
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever an answer raises is its result
        return RAISED + encode([type(error).__name__[:100], _message(error)])
    try:
        return VALUE + encode((result, _changed(call, positional, named)))
    except NotEncodable as odd:
        return f"{NOT_ENCODABLE}{encode(str(odd))}"


def _changed(call: str, positional: list[Any], named: dict[str, Any]) -> list[Any] | None:
    """The arguments as the call left them, None if as they were, or no longer plain data."""
    after: list[Any] = as_plain(positional)
    try:
        return None if encode_call(after, as_plain(named)) == call else after
    except NotEncodable:
        return None


def find_function(module: types.ModuleType, entry_point: str) -> Any:
    """The function of this name; of `Class.method` that of a new object, for every call.

    Raises:
        LookupError: there is none.
    """
    owner, _, method = entry_point.rpartition(".")
    found = module.__dict__.get(owner or method)
    if owner and callable(found):
        found = getattr(found(), method, None)
    if not callable(found):
        raise LookupError(f"there is no function named {entry_point}")
    return found


def reporter(report_fd: int) -> Report:
    """Writes report lines to a file."""

    def report(kind: str, text: str) -> None:
        rest = f"{kind}{text}\n".encode("ascii", "backslashreplace")
        while rest:
            rest = rest[os.write(report_fd, rest) :]

    return report


def prepare_interpreter() -> None:
    """Do before the forks what every answer would need.

    Standard streams are opened on files such as an answer's, which take their places after a fork;
    only the end of a process closes them. The same answer must get the same verdict every time,
    so all begin with the same random state.
    """
    for name in PRELOADED.split():
        with contextlib.suppress(ImportError):  # an interpreter built without this library
            importlib.import_module(name)
    os.register_at_fork = posix.register_at_fork  # what has been imported by now registered nothing
    for place in (0, 1, 2):
        file = os.memfd_create("stream")
        os.dup2(file, place)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    # `site` adds them, which no jail imports; whatever else it adds, programs do not use.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    random.seed(0)
    atexit.unregister(logging.shutdown)  # it takes long, and most answers log nothing
    for number in (signal.SIGXFSZ, signal.SIGPIPE):  # Python ignores both
        signal.signal(number, signal.SIG_DFL)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {_message(error)}".split())


def _message(error: BaseException) -> str:
    try:
        return as_plain(str(error))[:200]
    except BaseException:  # noqa: BLE001 - the answer's own class may fail to describe itself
        return ""
