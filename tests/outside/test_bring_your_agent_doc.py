"""The program and the settings of docs/bring-your-agent.md, run as they stand there."""

import asyncio
import re
import textwrap
from pathlib import Path

import yaml

from services.protocol.run.orchestrator import RunConfig
from services.router.config import RouterConfig
from tests.outside.conftest import request, sampler

PAGE = (Path(__file__).parents[2] / "docs" / "bring-your-agent.md").read_text()
PROGRAM = re.search(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
RUN_FILE, LIVE_FILE, CLUSTER_FILE = (
    yaml.safe_load(textwrap.dedent(block))
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", PAGE, re.M | re.S)
)


async def test_the_program_plays_what_a_run_offers(cluster, monkeypatch):
    monkeypatch.setenv("MILLRACE_URL", cluster.url)
    assert PROGRAM is not None
    names: dict = {}
    exec(compile(PROGRAM[1], "docs/bring-your-agent.md", "exec"), names)
    arrived: list = []
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(
            rollouts.sample(request("say\n42", n=2), lambda *one: arrived.append(one))
        )
        assert await asyncio.to_thread(names["play"])
        assert await asyncio.to_thread(names["play"])
        await asyncio.wait_for(sampling, 60)
    assert [score.reward for *_, score in arrived] == [1.0, 1.0]
    assert not await asyncio.to_thread(names["play"], 0.1), "there is no more"


def test_the_settings_are_known():
    assert RUN_FILE == {"environment": "external"}
    size = {"name": "live", "model": "policy", "steps": 1}
    assert RunConfig.from_data(size | LIVE_FILE, source="run.yaml").is_live
    assert (
        RouterConfig(**CLUSTER_FILE["applications"][0]["args"]["router"]).sessions_dir is not None
    )
