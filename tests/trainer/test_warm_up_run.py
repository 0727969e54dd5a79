"""The run of examples/tiny_code/warm_up.yaml: its first steps, by the real rank of a trainer."""

import math
import shutil
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer

from examples.tiny_code import make_model
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunState
from tests.orchestrator.fakes import metric_lines, run_to_end, world

STEPS = 3


async def test_the_run_from_random_weights_learns_from_its_demonstrations(
    tmp_path: Path, rank_groups: Any
) -> None:
    model = tmp_path / "model"
    make_model.make_model(model, seed=0, trained=False)
    make_model.write_tasks(tmp_path / make_model.TASK_FILE.name)
    make_model.write_demonstrations(tmp_path / make_model.DEMONSTRATIONS.name, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(model)

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        asks = {"add_generation_prompt": body["add_generation_prompt"], "return_dict": False}
        return web.json_response(
            {"tokens": tokenizer.apply_chat_template(body["messages"], **asks)}
        )

    def routes(app: web.Application) -> None:
        app.router.add_post("/tokenize", tokenize)

    # As the command reads it, which makes its files those beside it.
    source = make_model.FOLDER / "warm_up.yaml"
    run = read_run_file(shutil.copy(source, tmp_path), steps=STEPS)
    run = run.model_copy(update={"run_root": str(tmp_path / "runs"), "model": "tiny"})
    async with world(tmp_path, more_routes=routes) as cluster:
        status = await run_to_end(cluster, run)
        assert status.state is RunState.FINISHED, status.detail
        start, batches = cluster.trainer.starts[-1], [one for _, one in cluster.trainer.batches]
    assert [line["given_answers"] for line in metric_lines(status)] == [run.batch_groups] * STEPS

    ranks = rank_groups[1]
    ranks.load(model)
    assert ranks.call("start_run", start, 1)[0].step == 0
    steps = [ranks.call("train", batch, batch.step, batch.step + 1)[0] for batch in batches]
    losses = [one.metrics["cross_entropy"] for one in steps]
    uniform = math.log(len(tokenizer))
    assert abs(losses[0] - uniform) < 0.2, "random weights know nothing"
    assert losses[-1] < losses[1] < losses[0]
    rate, updates = run.algorithm.learning_rate, run.algorithm.minibatches
    assert (rate, updates) == (2e-3, 2), "as the file says"
    assert {one.metrics["learning_rate"] for one in steps} == {rate}
