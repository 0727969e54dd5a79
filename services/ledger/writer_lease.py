"""A file beside a ledger that names its one writer."""

import json
import os
import secrets
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from services.observability.log import Log
from services.process_identity import is_gone, this_process
from services.protocol.errors import InvalidInput

LEASE_S = 30.0
"""A lease that was not renewed for so long has run out, seconds."""
_RENEWED_EVERY_S = 5.0
_log = Log("ledger")


class LedgerHeld(InvalidInput):
    """Another process writes the ledger, or was killed a moment ago on another machine."""


class WriterLease:
    """The right to write a ledger; it is renewed until `release`, or the process is gone.

    The lease keeps a second writer away from one that is alive. It does not stop a writer whose
    lease ran out: that is what the ledger's writer number is for. All times are those of the
    file server, so the clocks of hosts need not agree.

    Args:
        ledger: path of the ledger.

    Raises:
        LedgerHeld: another process has the lease.
        OSError: the folder cannot be written.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger, self._token = ledger, secrets.token_hex(8)
        path = lease_path(ledger)
        own = path.with_name(f".{path.name}.{self._token}")
        try:
            own.write_text(json.dumps(this_process() | {"token": self._token}), encoding="utf-8")
            os.utime(own)
            _refuse_second(ledger, now=own.stat().st_mtime)
            own.replace(path)
        except BaseException:
            own.unlink(missing_ok=True)
            raise
        ended = threading.Event()
        arguments = (ledger, self._token, ended)
        thread = threading.Thread(target=_renew, args=arguments, daemon=True)
        thread.start()
        self.release = weakref.finalize(self, _release, *arguments, thread, os.getpid())

    @property
    def lost(self) -> bool:
        """Whether another process took the lease over."""
        return holder_of(self._ledger).get("token") != self._token


def lease_path(ledger: Path) -> Path:
    """The lease of a ledger."""
    return ledger.with_suffix(".writer")


def holder_of(ledger: Path) -> dict[str, str]:
    """Who has the lease, or had it last: by `this_process`; empty: unknown."""
    try:
        return dict(json.loads(lease_path(ledger).read_bytes()))
    except (OSError, ValueError):
        return {}


def named(holder: dict[str, str]) -> str:
    """A holder for people."""
    return f"process {holder['pid']} on {holder['host']}" if holder else "another process"


def _refuse_second(ledger: Path, *, now: float) -> None:
    path = lease_path(ledger)
    try:
        # Holds the place until the whole lease replaces it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        with suppress(FileNotFoundError), path.open("rb") as there:  # NFS asks its server
            age_s, holder = now - os.fstat(there.fileno()).st_mtime, holder_of(ledger)
            if age_s <= LEASE_S and not is_gone(holder):
                fix = (
                    f"{named(holder)} writes it, and renewed its lease {max(age_s, 0):.0f} s ago. "
                    f"End that run; if its machine is gone, wait {LEASE_S:.0f} s."
                )
                raise LedgerHeld("ledger", str(ledger), fix) from None


def _renew(ledger: Path, token: str, ended: threading.Event) -> None:
    while not ended.wait(_RENEWED_EVERY_S):
        try:
            if holder_of(ledger).get("token") == token:
                os.utime(lease_path(ledger))
        except OSError as error:
            _log.warning("ledger_lease_not_renewed", path=str(ledger), why=str(error))


def _release(
    ledger: Path, token: str, ended: threading.Event, thread: threading.Thread, pid: int
) -> None:
    if os.getpid() != pid:  # a fork, which has copies of all objects
        return
    ended.set()
    thread.join(_RENEWED_EVERY_S)
    if holder_of(ledger).get("token") == token:
        lease_path(ledger).unlink(missing_ok=True)
