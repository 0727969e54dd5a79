"""`millrace audit --agent`: environments that are programs, started once an episode."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit.test_audit import audit_of, graded, run_file

AGENT = """
import json, os, sys, urllib.request

def post(path, body):
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + path
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))

def ask():
    chat = {"model": "any", "messages": [{"role": "user", "content": sys.argv[1]}]}
    return post("/chat/completions", chat)["choices"][0]["message"]["content"]

def ended(**how):
    json.dump(how, open(os.environ["MILLRACE_RESULT"], "w"))
"""
GOOD = "ask()  # its last answer is graded"
PAYS_FAILURES = """
try:
    ended(text=ask())
except OSError:
    ended(reward=0.0)
"""
PAYS_LENGTH = """
said = ask()
post("/sessions/" + os.environ["MILLRACE_SESSION"] + "/rewards", {"reward": 0.7})
ended(reward=float(len(said) == 0))
"""
ROWS = [graded(n, "exact", expected=f"k{1000 + 37 * n}") for n in range(3)]


def audited(
    folder: Path, ending: str, *, more: str = "", **options: Any
) -> tuple[int, dict[str, Any], str]:
    run_file(folder, "external", ROWS)
    with (folder / "run.yaml").open("a") as file:
        file.write(more)
    (folder / "agent.py").write_text(AGENT + ending)
    command = f"{sys.executable} -S {folder / 'agent.py'} {{prompt}}"
    return audit_of(folder, **{"agent": command, "episodes": 6, "timeout": 600, **options})


def test_a_good_program_passes(tmp_path: Path) -> None:
    status, found, said = audited(tmp_path, GOOD)
    assert status == 0, said
    assert found["reward.worthless"]["verdict"] == "pass"
    assert found["reward.failure"]["evidence"] == "every episode failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "check", "words"),
    [
        (PAYS_FAILURES, "reward.failure", "became a reward: room-0: 0"),
        (PAYS_LENGTH, "reward.worthless", "'empty' is paid on room-0"),
    ],
    ids=["failures", "length"],
)
def test_a_planted_defect_is_found(tmp_path: Path, ending: str, check: str, words: str) -> None:
    status, found, said = audited(tmp_path, ending)
    assert status == 1, said
    assert found[check]["verdict"] == "fail", said
    assert words in found[check]["evidence"]


@pytest.mark.slow
def test_the_grader_that_a_program_names_is_the_one_that_is_audited(tmp_path: Path) -> None:
    more = "graders: {anything: {kind: regex, pattern: '.*'}}\n"
    status, found, said = audited(tmp_path, 'ask()\nended(grader="anything")', more=more)
    assert (status, found["reward.worthless"]["verdict"]) == (1, "fail"), said


def test_a_run_of_agents_needs_a_program_and_no_other_run_takes_one(tmp_path: Path) -> None:
    run_file(tmp_path, "external", ROWS)
    status, _, said = audit_of(tmp_path)
    assert (status, "--agent" in said) == (2, True), said
    run_file(tmp_path, None, ROWS)
    status, _, said = audit_of(tmp_path, agent="true")
    assert (status, "--agent" in said) == (2, True), said
