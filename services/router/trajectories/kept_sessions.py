"""Offered sessions on disk: what agents have played outlives the process that recorded it."""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.errors import InvalidInput
from services.protocol.session import SESSION_PREFIX
from services.router.trajectories.history import History
from services.router.trajectories.trajectory_tree import RecordedCall, RecordedChoice

_LOG = Log("router")
_LOCKED_S = 30.0
"""Longer than Serve gives a process to end its calls, 20 s unless a deployment says another."""

_POLL_S = 0.1

Change = list[Any]
"""The name of what happened to a session, and its arguments, as JSON has them."""


class KeptSessions:
    """One file for each session, to which every change is appended.

    What was written outlives the process. After a crash of the machine the newest changes may be
    missing. The files' names are the sessions' ids, which are keys: the folder is the user's alone.
    """

    def __init__(self, folder: Path) -> None:
        """Wait for the process that has the folder to end.

        Raises:
            InvalidInput: the folder cannot be used, or is in use.
        """
        self._folder = folder
        self._unwritten: set[str] = set()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidInput(
                "sessions_dir", str(folder), f"It cannot be used: {error}."
            ) from None
        deadline = time.monotonic() + _LOCKED_S
        while not self._locked():
            if time.monotonic() > deadline:
                fix = "Another router uses it: give each cluster a folder of its own."
                raise InvalidInput("sessions_dir", str(folder), fix)
            time.sleep(_POLL_S)

    def read(self) -> Iterator[tuple[str, list[Change]]]:
        """Every session that is kept, the oldest first, with its changes in order.

        A file that cannot be read is set aside.
        """
        for file in sorted(
            self._folder.glob(f"{SESSION_PREFIX}*"), key=lambda f: f.stat().st_mtime
        ):
            try:
                changes, end = _changes(file)
            except msgspec.DecodeError as error:
                self.set_aside(file.name, error)
                continue
            os.truncate(file, end)  # a change that was not written whole
            yield file.name, changes

    def set_aside(self, session_id: str, error: Exception) -> None:
        """Keep the file of a session that cannot be made of it, for people to look at."""
        file = self._folder / session_id
        aside = file.rename(file.with_name(f"damaged-{session_id}"))
        _LOG.warning("session_damaged", file=str(aside), error=str(error))
        RouterMetrics.sessions_dropped.inc(tags={"reason": "damaged"})

    def write(self, session_id: str, *change: Any) -> None:
        """Add a change to a session; a session that cannot be written is no longer kept.

        Nor is it later, when there is space again: the end of a session is none.
        """
        if session_id in self._unwritten:
            return
        try:
            with (self._folder / session_id).open("ab") as file:
                file.write(msgspec.json.encode(change) + b"\n")
        except OSError as error:
            # Its name is a key.
            _LOG.warning("session_not_written", folder=str(self._folder), error=str(error))
            RouterMetrics.sessions_not_written.inc()
            self._unwritten.add(session_id)
            with suppress(OSError):
                self._unlink(session_id)

    def forget(self, session_id: str) -> None:
        """A session was read or dropped."""
        self._unwritten.discard(session_id)
        self._unlink(session_id)

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def _unlink(self, session_id: str) -> None:
        (self._folder / session_id).unlink(missing_ok=True)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _changes(file: Path) -> tuple[list[Change], int]:
    """All whole changes in a file, and where they end."""
    changes: list[Change] = []
    end = 0
    with file.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            changes.append(msgspec.json.decode(line, type=list))
            end += len(line)
    return changes, end


def written(call: RecordedCall) -> list[Any]:
    """A call as JSON has it."""
    choices = [
        [
            list(one.token_ids),
            list(one.logprobs),
            list(one.spans),
            one.finish_reason,
            one.text,
            one.message,
        ]
        for one in call.choices
    ]
    history = call.history
    return [
        list(call.prompt_token_ids),
        choices,
        history.messages,
        [history.settings.hex(), call.cut],
    ]


def read_call(
    prompt: list[int], choices: list[list[Any]], messages: list[Any], more: Sequence[Any] = ()
) -> RecordedCall:
    """The call that was `written`, in a file of an earlier version perhaps with less."""
    settings, cut = more or ("", None)
    return RecordedCall(
        prompt_token_ids=prompt,
        choices=[_read_choice(*choice) for choice in choices],
        history=History(messages, bytes.fromhex(settings)),
        cut=cut,
    )


def _read_choice(
    token_ids: list[int],
    logprobs: list[float],
    spans: list[list[Any]],
    finish_reason: str,
    text: str,
    message: dict[str, Any] | None = None,
) -> RecordedChoice:
    return RecordedChoice(
        token_ids=token_ids,
        logprobs=logprobs,
        spans=[(version, start, end, replica) for version, start, end, replica in spans],
        finish_reason=finish_reason,
        text=text,
        message=message,
    )
