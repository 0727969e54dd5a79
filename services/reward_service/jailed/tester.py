"""Runs asserts that call an answer in another jail: the trusted side.

The answer never sees this process: its calls cross as data, results come back as plain values
of built-in types, and what is asserted of them is decided here.
"""

import ast
import builtins
import contextlib
import types
from typing import Any, NoReturn

from services.reward_service.jailed.answer import RAISED as RAISED_IN_CALL
from services.reward_service.jailed.answer import VALUE, Report
from services.reward_service.jailed.codec import (
    NotDecodable,
    NotEncodable,
    as_plain,
    decode,
    encode_call,
)
from services.reward_service.jailed.line_pipe import LinePipe, LineTooLong, PeerClosed, PeerTimeout

PASSED, FAILED, RAISED, LATE, GONE, LONG, BROKEN = "=", "!", "R", "L", "G", "O", "T"
"""First letter of a test's report: it passed; an assert failed; the answer raised, was waited
for too long, ended, sent too much; or the tests are wrong whatever the answer is."""

_CANDIDATE = "candidate"
_DETAIL_CHARACTERS = 200


class _Fault(BaseException):
    """The answer did something that ends the test, whatever the test catches."""


class _Broken(BaseException):
    """The tests ask for what cannot be had of any answer."""


class Answer:
    """The answer's function, as tests call it.

    Attributes:
        replies: calls that have been replied to.
        fault: letter and reason of what ends the test, if anything does.
        raised: the exception that the answer raised last.
        said: its class and message.
    """

    def __init__(self, pipe: LinePipe) -> None:
        self.replies = 0
        self.fault: tuple[str, str] | None = None
        self.raised: BaseException | None = None
        self.said = ""
        self._pipe = pipe

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Call it. Lists, dictionaries and sets that it changes are changed here, too."""
        if self.fault is not None:
            raise _Fault
        try:
            text = encode_call(as_plain([*positional]), as_plain(named))
        except NotEncodable as odd:
            if self.replies:  # it may have come from the answer
                self._end(FAILED, f"an argument is {odd}")
            raise _Broken(f"an argument is {odd}") from None
        return self._read(self._exchange(text), positional)

    def _exchange(self, text: str) -> str:
        try:
            self._pipe.send(text)
            reply = self._pipe.receive()
        except PeerClosed:
            self._end(GONE, "it ended before the tests did")
        except PeerTimeout:
            self._end(LATE, "it did not return")
        except LineTooLong:
            self._end(LONG, "its result is too long")
        self.replies += 1
        return reply

    def _read(self, reply: str, positional: tuple[Any, ...]) -> Any:
        error: Exception | None = None
        try:
            value = decode(reply[1:])
            if reply.startswith(VALUE):
                result, after = value
                for given, changed in zip(positional, after or positional, strict=True):
                    _restore(given, changed)
                return result
            if reply.startswith(RAISED_IN_CALL):
                name, message = value
                error, self.said = _exception(name, message), f"{name}: {message}"
        except (NotDecodable, TypeError, ValueError):
            self._end(FAILED, "its result cannot be read")
        if error is None:
            self._end(FAILED, f"its result is {value}")
        self.raised = error
        raise error

    def _end(self, kind: str, reason: str) -> NoReturn:
        self.fault = (kind, reason)
        raise _Fault


def run_tests(payload: dict[str, Any], report: Report, channel: tuple[int, int]) -> None:
    """Run `payload["tests"]`, one report each, until one fails if `payload["stop"]`."""
    max_bytes, timeout_s = payload["max_bytes"], payload["timeout_s"]
    answer = Answer(LinePipe(*channel, max_bytes=max_bytes, timeout_s=timeout_s))
    names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        exec(compile(payload["setup"], "setup.py", "exec"), names)
        names.update(_names(payload["entry_point"], answer))
        codes = [_compiled(source, names) for source in payload["tests"]]
    except BaseException as error:  # noqa: BLE001 - no answer had a part in it
        report(BROKEN, _said(error))
        return
    for code in codes:
        kind, reason = _outcome(code, dict(names), answer)
        report(kind, " ".join(reason.split())[:_DETAIL_CHARACTERS])
        gone = answer.fault is not None and answer.fault[0] != FAILED
        if kind == BROKEN or gone or (payload["stop"] and kind != PASSED):
            return
        answer.fault = None


def _outcome(code: types.CodeType, names: dict[str, Any], answer: Answer) -> tuple[str, str]:
    before, answer.raised = answer.replies, None
    ended: tuple[str, str] = (PASSED, "")
    try:
        exec(code, names)
    except BaseException as error:  # noqa: BLE001 - a test may raise anything
        if error is answer.raised:
            ended = (RAISED, answer.said)
        elif answer.replies or answer.fault is not None:
            asserted = isinstance(error, AssertionError)
            reason = "an assert failed" if asserted else f"{type(error).__name__} in the tests"
            ended = (FAILED, reason)
        else:  # before the answer said anything: it would fail for any
            return BROKEN, _said(error)
    if answer.fault is not None:
        return answer.fault
    if ended[0] == PASSED and answer.replies == before:
        return (FAILED, "it never called the answer") if before else (BROKEN, "it calls nothing")
    return ended


def _names(entry_point: str, answer: Answer) -> dict[str, Any]:
    """What tests call: `candidate`, the function's own name, or a method of a new object."""
    owner, _, method = entry_point.rpartition(".")
    if not owner:
        return {_CANDIDATE: answer, method: answer}
    return {_CANDIDATE: answer, owner: type(owner, (), {method: staticmethod(answer)})}


def _compiled(source: str, names: dict[str, Any]) -> types.CodeType:
    """A test's code.

    Raises:
        _Broken: it needs a name that nothing defines, which no answer could mend.
    """
    tree = ast.parse(source)
    known = {*names, *dir(builtins)}
    used = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
    if "*" not in known and used - known:
        raise _Broken(f"they use {', '.join(sorted(used - known))}, which nothing defines")
    return compile(tree, "tests.py", "exec")


def _restore(given: Any, changed: Any) -> None:
    """Give an argument the content that it has after the call, where it has one to change."""
    if given is changed:
        return
    if isinstance(given, list) and isinstance(changed, list):
        given[:] = changed
    elif isinstance(given, dict | set) and isinstance(changed, dict | set):
        given.clear()
        given.update(changed)


def _exception(name: str, message: str) -> Exception:
    """The built-in exception of this name, for tests that expect one."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # as of UnicodeDecodeError, which takes more
            return kind(message)
    return RuntimeError(message)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__.strip('_')}: {error}"
