"""One episode: a program that is started for one session, and how it ended."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from millrace_tools.agents.work import Work
from services.protocol.errors import InvalidInput
from services.protocol.session import SessionEnding

_SHOWN = 300
_LONGEST = 1 << 20
_PROMPT, _TASK = "{prompt}", "{task}"
_GRACE_S = 5.0


class Episode:
    """Runs a program for one session.

    Args:
        work: what it plays.
        command: the program and its arguments; `{prompt}` and `{task}` in them stand for the task
            in words, and for the path of its JSON file.
        url: of the router.
        folder: of its files: `task.json`, `stdout`, `stderr`, and `result.json`, which the program
            may write: `{"reward": 1.0}`, or `{"text": "an answer to be graded"}`.
    """

    def __init__(self, work: Work, command: Sequence[str], *, url: str, folder: Path) -> None:
        self._work, self._folder = work, folder
        folder.mkdir(parents=True)
        task = folder / "task.json"
        task.write_text(json.dumps(work.task, indent=1), encoding="utf-8")
        marks = {_PROMPT: work.prompt, _TASK: str(task)}
        self._command = [_filled_in(word, marks) for word in command]
        self._environment = os.environ | {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": work.session,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": work.session,
            "MILLRACE_URL": url,
            "MILLRACE_SESSION": work.session,
            "MILLRACE_MODEL": work.model,
            "MILLRACE_TASK": str(task),
            "MILLRACE_RESULT": str(self._result),
        }

    @property
    def _result(self) -> Path:
        return self._folder / "result.json"

    def play(self, timeout_s: float) -> dict[str, Any]:
        """Run the program to its end; returns how the session ended.

        A program that fails, is too slow, or writes no good result has a failure and no reward.
        """
        with (
            (self._folder / "stdout").open("wb") as out,
            (self._folder / "stderr").open("wb") as err,
        ):
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                return _failure(f"it cannot be started: {error}")
            try:
                in_time = _has_ended(process, timeout_s)
            finally:
                status = _end(process)
        if not in_time:
            return _failure(f"not ended after {timeout_s:g} s")
        if status:
            return _failure(f"exit status {status}: {self._last_words()}")
        return self._ending()

    def _ending(self) -> dict[str, Any]:
        try:
            if not self._result.exists():
                return {}  # the grader of the task looks at the last answer
            content = self._result.read_bytes()[: _LONGEST + 1]
            if len(content) > _LONGEST:
                return _failure(f"{self._result.name} is longer than {_LONGEST} bytes")
            ending = SessionEnding.from_data(json.loads(content), source=self._result.name)
        except (OSError, ValueError, InvalidInput) as error:
            return _failure(f"{self._result.name} cannot be used: {error}")
        return ending.model_dump(exclude_none=True)

    def _last_words(self) -> str:
        lines = (self._folder / "stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1][:_SHOWN] if lines else "it said nothing"


def _filled_in(word: str, marks: dict[str, str]) -> str:
    for mark, value in marks.items():
        word = word.replace(mark, value)
    return word


def _failure(why: str) -> dict[str, Any]:
    return {"failure": why[:_SHOWN]}


def _has_ended(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Wait for the program, and do not ask for its status yet: until then its process group can
    be no other one's."""
    descriptor = os.pidfd_open(process.pid)
    try:
        ends = select.poll()
        ends.register(descriptor, select.POLLIN)
        return bool(ends.poll(1000 * timeout_s))
    finally:
        os.close(descriptor)


def _end(process: "subprocess.Popen[bytes]") -> int:
    """End the program and all that it started; returns its status."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        _has_ended(process, _GRACE_S)
    return process.wait()
