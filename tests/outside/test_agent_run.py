"""`millrace agent-run` starts a program that knows nothing of us, once for each episode."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.orchestrator.rollout.rollout import RolloutFailed
from tests.outside.conftest import request, sampler
from tests.router.conftest import Cluster, Fault

AGENT = """
import json, os, sys
import openai
client = openai.OpenAI(max_retries=0)  # the base URL and the key come from the environment
task = json.load(open(os.environ["MILLRACE_TASK"]))
answer = client.chat.completions.create(
    model="gpt-5", messages=[{"role": "user", "content": sys.argv[1]}])
said = answer.choices[0].message.content
json.dump({"reward": float("words" in said)}, open(os.environ["MILLRACE_RESULT"], "w"))
"""


async def start(
    cluster: Cluster, folder: Path, *program: str, **options: str | Sequence[str]
) -> asyncio.subprocess.Process:
    """The command, in a process of its own; an option may come several times."""
    words = [
        f"--{name.replace('_', '-')}={one}"
        for name, value in options.items()
        for one in ([value] if isinstance(value, str) else value)
    ]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millrace_tools.main", "agent-run", "--url", cluster.url),
        *("--logs", str(folder), *words, "--", *program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def end_of(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """The exit status of the command, and what it wrote."""
    written, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, written.decode()


async def run(
    cluster: Cluster, folder: Path, *program: str, **options: str | Sequence[str]
) -> tuple[int, str]:
    """The command, from its start to its end."""
    return await end_of(await start(cluster, folder, *program, **options))


async def until_called(cluster: Cluster) -> None:
    """Wait until a program has asked the model, which answers nothing."""
    calls = [asyncio.create_task(replica.stalled.wait()) for replica in cluster.replicas]
    done, waiting = await asyncio.wait(calls, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    assert done, "no program has called"
    for one in waiting:
        one.cancel()


async def played(cluster: Cluster, folder: Path, *program: str, **options: str):
    """What arrives of a group whose episodes a program plays, how it failed, and the output."""
    arrived: list = []
    failed = None
    async with sampler(cluster) as rollouts:
        command = asyncio.create_task(run(cluster, folder, *program, episodes="2", **options))
        try:
            await rollouts.sample(request(), lambda *one: arrived.append(one))
        except RolloutFailed as error:
            failed = error
        return arrived, failed, await command


async def test_a_plain_program_plays_an_episode_and_its_result_trains(cluster, tmp_path):
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    folder = tmp_path / "logs"
    arrived, failed, (status, written) = await played(
        cluster, folder, sys.executable, str(program), "{prompt}"
    )
    assert failed is None, written
    assert [score.reward for *_, score in arrived] == [1.0, 1.0], written
    assert status == 0
    assert "2 finished" in written
    assert len(list(folder.glob("*/task.json"))) == 2


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('no such tool')", "exit status 1: no such tool"),
        ("import time; time.sleep(999)", "not ended after 2 s"),
        ("import os; open(os.environ['MILLRACE_RESULT'], 'w').write('{')", "cannot be used"),
        (
            "import os; open(os.environ['MILLRACE_RESULT'], 'w').write('{\"reward\": NaN}')",
            "cannot be used",
        ),
        (
            "import os; open(os.environ['MILLRACE_RESULT'], 'w').write('[' * 100000)",
            "cannot be used",
        ),
        (
            "import os; open(os.environ['MILLRACE_RESULT'], 'w').write('{\"grader\": \"mine\"}')",
            "The run has none",
        ),
    ],
    ids=["fails", "hangs", "garbles", "no number", "nests", "names an unknown grader"],
)
async def test_a_program_that_fails_is_named_and_never_a_reward(cluster, tmp_path, code, why):
    _, failed, (status, written) = await played(
        *(cluster, tmp_path / "logs", sys.executable, "-c", code),
        timeout="2" if "not ended" in why else "600",
    )
    assert failed.reason == "agent_failed"
    assert why in str(failed)
    assert status == 0
    assert "2 failed" in written


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=["end", "two interrupts"]
)
async def test_programs_that_it_ends_are_failures(cluster, tmp_path, signals):
    for replica in cluster.replicas:
        replica.always = Fault("stall")
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    async with sampler(cluster) as rollouts:
        command = await start(cluster, tmp_path / "logs", sys.executable, str(program), "{prompt}")
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *_: None))
        await until_called(cluster)
        for number in signals[:-1]:
            command.send_signal(number)
            assert b"waiting for the programs" in await command.stdout.readline()
        command.send_signal(signals[-1])
        status, written = await end_of(command)
        with pytest.raises(RolloutFailed, match="agent-run was ended"):
            await sampling
    assert status == 128 + signals[-1]
    assert "1 failed" in written


async def test_it_ends_when_nothing_is_offered(cluster, tmp_path):
    status, written = await run(cluster, tmp_path / "logs", "true", idle="1")
    assert (status, "episodes: none" in written) == (0, True)


async def test_a_bad_option_is_named(cluster, tmp_path):
    status, written = await run(cluster, tmp_path / "logs", "true", parallel="0")
    assert status == 2
    assert "--parallel" in written


async def test_options_of_containers_need_an_image(cluster, tmp_path):
    status, written = await run(cluster, tmp_path / "logs", "true", container_url="http://a:1")
    assert status == 2
    assert "--container-url: 'http://a:1' -> It needs --image." in written


async def test_an_address_for_containers_that_is_no_url_is_named(cluster, tmp_path):
    options = {"image": "none", "container_url": "http://a:1:"}
    status, written = await run(cluster, tmp_path / "logs", "true", **options)
    assert status == 2
    assert "--container-url: 'http://a:1:' -> It is not a URL" in written
