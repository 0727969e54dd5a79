"""The first lines of the guides: bring your agent, bring your environment, read an audit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.scripted import Scripted
from tests.audit.test_env_try import tried

DOCS = Path(__file__).parents[2] / "docs"
_MOST = 10
"""Lines of code and commands to the first result, beside the task."""

AGENT = """
import sys
from openai import OpenAI
messages = [{"role": "user", "content": sys.argv[1]}]
print(OpenAI(max_retries=0).chat.completions.create(model="m", messages=messages))
"""


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_an_audit_of_the_guides_environment_finds_what_the_guide_says(tmp_path: Path) -> None:
    program, tasks = blocks("environments.md", "python")[0], blocks("environments.md", "json")[0]
    audit, said = (
        blocks("environments.md", "bash")[0].splitlines()[0],
        blocks("environments.md", "text")[0],
    )
    assert len([*program.splitlines(), audit]) <= _MOST
    (tmp_path / "environment.py").write_text(program)
    (tmp_path / "tasks.jsonl").write_text(tasks)
    words = audit.removeprefix("millrace ").split()
    done = subprocess.run(
        [sys.executable, "-m", "millrace_tools.main", *words, "--only", "reward.gameable"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    # This folder's name has digits too, and may be paid for them.
    found = said.rstrip() in done.stdout
    assert (done.returncode, found) == (1, True), done.stdout + done.stderr


async def test_an_agent_plays_the_guides_task_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(blocks("bring-your-agent.md", "json")[0])
    (tmp_path / "agent.py").write_text(AGENT)
    command = blocks("bring-your-agent.md", "bash")[0]
    assert "env try tasks.jsonl" in command
    assert """--agent 'python agent.py "{prompt}"'""" in command
    async with Scripted(lambda messages: "The answer is 42.") as server:
        agent = f'{sys.executable} {tmp_path}/agent.py "{{prompt}}"'
        status, said = await tried(f"{tmp_path}/tasks.jsonl", server.url, "--agent", agent)
    assert (status, said.count("reward 1 (1 c"), said.count("reward 0 (1 c")) == (0, 1, 1), said
    asked = {conversation[-1]["content"] for conversation in server.conversations}
    assert asked == {"What is 6 times 7?", "What is 3 times 5?"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_front_pages_lead_to_the_three_guides(page: str) -> None:
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    folder = "docs/" if page == "README.md" else ""
    for guide in ("bring-your-agent.md", "environments.md", "audit.md"):
        assert f"]({folder}{guide})" in text
