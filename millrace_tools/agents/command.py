"""`millrace agent-run`: start a program once for each episode that a run offers."""

import argparse
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.agents.containers import Containers, network_of
from millrace_tools.agents.episode import Episode
from millrace_tools.agents.work import Offers, Work
from millrace_tools.client.services_url import http_client, split_url
from millrace_tools.command import SERVICES_URL, command, option
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput, NotReady
from services.retry import doubling

_WAIT_S = 5.0
"""A worker asks for an episode again after so long; at an end the command waits for that."""
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_REPORT_S = 600.0
"""Until then another router has taken the place of one that was killed, with its sessions."""
_IN_CONTAINERS = ("memory", "cpus", "pids", "network", "container_url", "run_arg")


@command(
    "agent-run",
    SERVICES_URL,
    option("--run", help="play the episodes of this run only"),
    option("--parallel", type=int, default=8, help="programs at a time (8)"),
    option("--timeout", type=float, default=3600.0, help="seconds of one episode (3600)"),
    option("--episodes", type=int, help="end after so many"),
    option("--idle", type=float, help="end when nothing was offered for so many seconds"),
    option("--logs", type=Path, default=Path("agent-runs"), help="folder of the programs' output"),
    option("--image", help="run each program in a container of this image, by docker or podman"),
    option("--memory", help="of a container (4g)"),
    option("--cpus", type=float, help="of a container (all)"),
    option("--pids", type=int, help="processes and threads of a container (1024)"),
    option("--network", help="of a container (host if --url is of this machine, else none named)"),
    option("--container-url", help="where a container reaches the router (--url)"),
    option("--run-arg", action="append", help="one more argument of `docker run`; repeatable"),
    option("program", nargs="+", metavar="PROGRAM", help="after --, with its arguments"),
)
def agent_run(arguments: argparse.Namespace, console: Console) -> int:
    """Play a run's episodes with a program of your own.

    Raises:
        InvalidInput: an option cannot be used, or no router answers at the first call.
    """
    for name in ("parallel", "timeout", "episodes", "idle", "cpus", "pids"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise InvalidInput(f"--{name}", value, "It must be above 0.")
    containers = _containers(arguments)
    with http_client(arguments.url, _WAIT_S) as http:
        offers = Offers(http, arguments.url, arguments.run)
        runner = Runner(arguments, offers, console, containers)
        if containers is not None and (removed := containers.remove_orphans()):
            print_line(f"removed {removed} containers of an agent-run that was killed", console)
        try:
            with runner.ended_by_signals():
                runner.run()
        finally:
            print_line(runner.summary(), console)
    return 128 + runner.signal if runner.signal else 0


def _containers(arguments: argparse.Namespace) -> Containers | None:
    if arguments.image is None:
        for name in _IN_CONTAINERS:
            if (value := getattr(arguments, name)) is not None:
                raise InvalidInput(f"--{name.replace('_', '-')}", value, "It needs --image.")
        return None
    if ":" in str(arguments.logs.resolve()):
        raise InvalidInput("--logs", str(arguments.logs), "Containers need a path without colons.")
    if arguments.container_url is not None:
        split_url(arguments.container_url, "--container-url")
    url, cpus = arguments.container_url or arguments.url, arguments.cpus
    settings = [
        f"--memory={arguments.memory or '4g'}",
        *([] if cpus is None else [f"--cpus={cpus:g}"]),
        f"--pids-limit={arguments.pids or 1024}",
        *network_of(url, arguments.network),
        *(arguments.run_arg or ()),
    ]
    return Containers(arguments.image, settings)


class Runner:
    """Takes sessions and plays them, several at a time.

    Attributes:
        signal: by which it was ended, 0 for none.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        offers: Offers,
        console: Console,
        containers: Containers | None,
    ) -> None:
        self._arguments, self._offers, self._console = arguments, offers, console
        self._containers, self._abandoned = containers, os.eventfd(0)
        self.signal = 0
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._left: int | None = arguments.episodes
        self._taken_at = time.monotonic()
        self._ended: Counter[str] = Counter()

    def run(self) -> None:
        """Play until there is no more to play, or the user interrupts it.

        What one worker cannot go on from ends the programs of the others, and is raised.
        """
        with ThreadPoolExecutor(self._arguments.parallel, "episode") as threads:
            workers = [threads.submit(self._work) for _ in range(self._arguments.parallel)]
            try:
                ended, _ = wait(workers, return_when=FIRST_EXCEPTION)
                for worker in ended:
                    worker.result()
            except BaseException:
                os.eventfd_write(self._abandoned, 1)
                raise
            finally:
                self._stopped.set()

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """An interrupt ends the taking of sessions; a second one, or SIGTERM, the programs, too."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        heard = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        for number in heard:
            signal.signal(number, self._end)
        try:
            yield
        finally:
            for number in heard:
                signal.signal(number, before[number])

    def _end(self, number: int, _: object) -> None:
        again, self.signal = self.signal, number
        self._stopped.set()
        if again or number == signal.SIGTERM:
            os.eventfd_write(self._abandoned, 1)
        else:
            line = "waiting for the programs that run; interrupt again to end them"
            print_line(line, self._console)

    def summary(self) -> str:
        """How the episodes ended."""
        ended = ", ".join(f"{count} {how}" for how, count in sorted(self._ended.items()))
        return f"episodes: {ended or 'none'}"

    def _work(self) -> None:
        while not self._stopped.is_set() and self._may_take():
            try:
                work = self._offers.take(min(_WAIT_S, self._arguments.idle or _WAIT_S))
            except NotReady as away:
                print_line(f"{away}; asking again", self._console, "dim")
                self._stopped.wait(_PAUSE_S)
                work = None
            if work is None:
                self._give_back()
                continue
            self._taken_at = time.monotonic()
            self._count(self._played(work))

    def _played(self, work: Work) -> str:
        folder = self._arguments.logs / work.session
        episode = Episode(
            work,
            self._arguments.program,
            url=self._url,
            folder=folder,
            containers=self._containers,
        )
        ending = episode.play(self._arguments.timeout, self._abandoned)
        known = self._reported(work.session, ending)
        if "failure" in ending:
            print_line(f"{work.session}: {ending['failure']} ({folder})", self._console, "dim")
        if known is None:
            return "not reported"
        return "failed" if "failure" in ending else "finished" if known else "ended elsewhere"

    def _reported(self, session: str, ending: dict[str, Any]) -> bool | None:
        """As `Offers.end`; None if the router is away for too long, or at the command's end."""
        deadline = time.monotonic() + _REPORT_S
        for pause_s in doubling(_PAUSE_S, _LONGEST_PAUSE_S):
            last = self._stopped.is_set() or time.monotonic() > deadline
            try:
                return self._offers.end(session, ending)
            except NotReady as away:
                then = "its end is not reported" if last else "reporting its end again"
                print_line(f"{session}: {away}; {then}", self._console, "dim")
            if last:
                break
            self._stopped.wait(pause_s)
        return None

    @property
    def _url(self) -> str:
        return str(self._arguments.container_url or self._arguments.url).rstrip("/")

    def _may_take(self) -> bool:
        idle = self._arguments.idle
        with self._lock:
            if idle is not None and time.monotonic() > self._taken_at + idle:
                return False
            if self._left is None:
                return True
            self._left -= 1
            return self._left >= 0

    def _give_back(self) -> None:
        with self._lock:
            if self._left is not None:
                self._left += 1

    def _count(self, how: str) -> None:
        with self._lock:
            self._ended[how] += 1
