"""Ways to run tests: the reward service, a subprocess a test, a bubblewrap jail a test."""

import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import tree_cpu_s
from benchmarks.reward.load import SUFFIX, TIME_LIMIT_S, Sample
from millrace_tools.cluster.leftovers import adopt_orphans
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.config import RewardServiceConfig
from services.reward_service.isolation.bubblewrap import Bubblewrap
from services.reward_service.isolation.jail import Jail
from services.reward_service.languages import languages
from services.reward_service.scoring import Scoring

_BUBBLEWRAP_FLAGS = [
    *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
    *("--ro-bind", "/usr", "/usr", "--dev", "/dev"),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Time that grading some samples took.

    Attributes:
        cpu_s: of all processes.
        service_s: of the service's own process, or of the runner.
        inside_s: of the tests' own processes, where somebody counted it.
    """

    tests: int
    wall_s: float
    cpu_s: float
    service_s: float
    inside_s: float | None

    def per_core(self, cores: int) -> float:
        """Tests per second and core."""
        return self.tests / self.wall_s / cores


Way = Callable[[Sequence[Sample]], Measured]


class WrongVerdict(RuntimeError):
    """A way did not find what is known of a sample, so its speed means nothing."""


@asynccontextmanager
async def service(cores: int) -> AsyncIterator[Scoring]:
    """The reward service in this process, warmed up."""
    with tempfile.TemporaryDirectory(prefix="millrace-benchmark-") as folder:
        patient = {"answer_deadline_s": 3600, "queue_wait_s": 3600}  # the machine may be slow
        scoring = Scoring(
            RewardServiceConfig(slots=cores, toolchain_dir=folder).model_copy(update=patient)
        )
        try:
            await scoring.start()
            yield scoring
        finally:
            await scoring.tools.aclose()


async def by_service(scoring: Scoring, samples: Sequence[Sample]) -> tuple[Measured, list[Score]]:
    """Grade all in one call, as the orchestrator does; programs were compiled before."""
    jobs = [sample.job(str(number)) for number, sample in enumerate(samples)]
    with measured() as taken:
        scores = await scoring.score(jobs)
    for sample, score in zip(samples, scores, strict=True):
        expected = Verdict.ACCEPTED if sample.ends else Verdict.TIME_LIMIT
        if score.verdict is not expected:
            raise WrongVerdict(f"{score.verdict} for {expected}: {score.detail}")
    tests, inside_s = sum(score.run for score in scores), sum(score.cpu_s for score in scores)
    return Measured(tests=tests, inside_s=inside_s, **taken), scores


async def compile_all(scoring: Scoring, samples: Sequence[Sample]) -> None:
    """Have the service compile them, and remember the programs."""
    language, compiler = languages()[samples[0].language], scoring.sandbox.compiler
    if language.toolchain is not None and compiler is not None:
        for sample in samples:
            await compiler.compile(sample.source, language)


@contextmanager
def process_each(cores: int, *, jailed: bool) -> Iterator[Way]:
    """A new process for every test, as many at a time as there are cores.

    The interpreter is the one that slots run, without `site`, and the source lies in
    a file already: as little work as this way can have. C++ is compiled once for a sample.
    """
    jail = Jail.here(namespaces=False)
    python = [jail.interpreter, "-I", "-S", "-B"]
    bubblewrap = Bubblewrap.here().path if jailed else ""
    numbers = itertools.count()

    def grade(sample: Sample) -> None:
        file = folder / f"{next(numbers)}{SUFFIX[sample.language]}"
        file.write_text(sample.source)
        command = [*python, str(file)]
        if sample.language != "python":
            command = [str(_compiled(sample, folder))]
        if jailed:
            mounts = ["--ro-bind", str(folder), str(folder)]
            if not jail.prefix.startswith("/usr"):
                mounts += ["--ro-bind", jail.prefix, jail.prefix]
            command = [bubblewrap, *_BUBBLEWRAP_FLAGS, *mounts, "--", *command]
        for stdin, expected in sample.tests:
            done = subprocess.run(
                command,
                input=stdin.encode(),
                capture_output=True,
                timeout=4 * TIME_LIMIT_S + 10,
                check=False,
            )
            if done.returncode != 0 or done.stdout.decode().rstrip() != expected.rstrip():
                raise WrongVerdict(done.stderr.decode()[-500:])

    def run(samples: Sequence[Sample]) -> Measured:
        for sample in samples:
            if sample.language != "python":
                _compiled(sample, folder)
        with measured() as taken:
            list(pool.map(grade, samples))
        tests = sum(len(sample.tests) for sample in samples)
        return Measured(tests=tests, inside_s=None, **taken)

    with tempfile.TemporaryDirectory(prefix="millrace-each-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(cores) as pool:
            yield run


def _compiled(sample: Sample, folder: Path) -> Path:
    """One program for all samples: what compiling takes is not compared here."""
    program = folder / "compiled"
    if not program.exists():
        command = ["g++", "-x", "c++", "-std=c++17", "-O2", "-static", "-o", str(program), "-"]
        subprocess.run(command, input=sample.source.encode(), check=True)
    return program


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Wall seconds, and processor seconds of this process and of it with all its descendants.

    Those whose parents leave before they do, as in a bubblewrap jail, come to this process.
    """
    adopt_orphans()
    taken: dict[str, float] = {}
    cpu, own, wall = _cpu_s(), time.process_time(), time.monotonic()
    yield taken
    taken["wall_s"] = time.monotonic() - wall
    taken |= {"service_s": time.process_time() - own, "cpu_s": _cpu_s() - cpu}


def _cpu_s() -> float:
    """Of this process and its descendants, once those are waited for that came to it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return tree_cpu_s()
