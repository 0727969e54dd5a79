"""One episode: a program that is started for one session, and how it ended."""

import json
import os
import select
import signal
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from millrace_tools.agents.containers import INSIDE, Containers, new_name
from millrace_tools.agents.work import Work
from services.protocol.errors import InvalidInput
from services.protocol.session import SessionEnding

_SHOWN = 300
_LONGEST = 1 << 20
_PROMPT, _TASK = "{prompt}", "{task}"
_TASK_FILE, _RESULT_FILE = "task.json", "result.json"
_GRACE_S = 5.0
_ABANDONED = "agent-run was ended"


class Episode:
    """Runs a program for one session.

    Args:
        work: what it plays.
        command: the program and its arguments; `{prompt}` and `{task}` in them stand for the task
            in words, and for the path of its JSON file.
        url: of the router.
        folder: of its files: `task.json`, `stdout`, `stderr`, and `result.json`, which the program
            may write: `{"reward": 1.0}`, or `{"text": "an answer to be graded"}`, or the name of
            the run's `grader` for it. A program in a container sees the folder `shared` in it, with
            the two files in JSON.
        containers: to run it in one of them, None for none.
    """

    def __init__(
        self,
        work: Work,
        command: Sequence[str],
        *,
        url: str,
        folder: Path,
        containers: Containers | None = None,
    ) -> None:
        self._folder, self._containers, self._graders = folder, containers, work.graders
        folder.mkdir(parents=True)
        self._shared = folder if containers is None else _open_to_all(folder / "shared")
        task = self._shared / _TASK_FILE
        task.write_text(json.dumps(work.task, indent=1), encoding="utf-8")
        seen: PurePath = self._shared if containers is None else INSIDE
        marks = {_PROMPT: work.prompt, _TASK: str(seen / _TASK_FILE)}
        self._command = [_filled_in(word, marks) for word in command]
        variables = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": work.session,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": work.session,
            "MILLRACE_URL": url,
            "MILLRACE_SESSION": work.session,
            "MILLRACE_MODEL": work.model,
            "MILLRACE_TASK": str(seen / _TASK_FILE),
            "MILLRACE_RESULT": str(seen / _RESULT_FILE),
        }
        self._environment = os.environ | variables
        self._container = new_name()
        if containers is not None:
            task.chmod(0o644)
            self._command = containers.command(
                self._container, shared=self._shared, variables=variables, program=self._command
            )

    def play(self, timeout_s: float, abandoned: int | None = None) -> dict[str, Any]:
        """Run the program to its end; returns how the session ended.

        A program that fails, is too slow, or writes no good result has a failure and no reward.

        Args:
            timeout_s: after which it is ended.
            abandoned: a descriptor that can be read once all programs are to be ended; None:
                nobody ends them.
        """
        if _is_readable(abandoned):
            return _failure(_ABANDONED)
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
                ended = _has_ended(process, timeout_s, abandoned)
            finally:
                status = _end(process)
            if ended and status == 0:
                return self._ending()
            why = f"exit status {status}: {self._last_words()}" if ended else ""
            if self._containers is not None:  # its client has ended, which may be all
                err.write(self._containers.remove(self._container).encode())
        late = f"not ended after {timeout_s:g} s"
        return _failure(why or (_ABANDONED if _is_readable(abandoned) else late))

    def _ending(self) -> dict[str, Any]:
        try:
            content = _content(self._shared / _RESULT_FILE)
            ending = SessionEnding.from_data(json.loads(content), source=_RESULT_FILE)
            if ending.grader is not None and ending.grader not in self._graders:
                fix = f"The run has {', '.join(self._graders) or 'none'}."
                raise InvalidInput("grader", ending.grader, fix)
        except FileNotFoundError:
            return {}  # the grader of the task looks at the last answer
        except (OSError, ValueError, RecursionError, InvalidInput) as error:
            return _failure(f"{_RESULT_FILE} cannot be used: {error}")
        return ending.model_dump(exclude_none=True)

    def _last_words(self) -> str:
        lines = (self._folder / "stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1][:_SHOWN] if lines else "it said nothing"


def _filled_in(word: str, marks: dict[str, str]) -> str:
    for mark, value in marks.items():
        word = word.replace(mark, value)
    return word


def _open_to_all(folder: Path) -> Path:
    """Make a folder for the user of a container, who may be any; others do not come to it."""
    folder.parent.chmod(0o700)
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def _content(path: Path) -> bytes:
    """Of a file that a program wrote, who may have put a link or a pipe in its place.

    Raises:
        OSError: it cannot be read, or is a link.
        ValueError: it is no file, or too long.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST} bytes")
    return content


def _failure(why: str) -> dict[str, Any]:
    return {"failure": why[:_SHOWN]}


def _has_ended(
    process: "subprocess.Popen[bytes]", timeout_s: float, abandoned: int | None = None
) -> bool:
    """Wait for the program, or until the other descriptor can be read.

    Do not ask for its status yet: until then its process group can be no other one's.
    """
    descriptor = os.pidfd_open(process.pid)
    try:
        ends = select.poll()
        ends.register(descriptor, select.POLLIN)
        if abandoned is not None:
            ends.register(abandoned, select.POLLIN)
        return any(ready == descriptor for ready, _ in ends.poll(1000 * timeout_s))
    finally:
        os.close(descriptor)


def _is_readable(descriptor: int | None) -> bool:
    if descriptor is None:
        return False
    polled = select.poll()
    polled.register(descriptor, select.POLLIN)
    return bool(polled.poll(0))


def _end(process: "subprocess.Popen[bytes]") -> int:
    """End the program and all that it started; returns its status."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        _has_ended(process, _GRACE_S)
    return process.wait()
