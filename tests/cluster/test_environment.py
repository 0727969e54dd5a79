"""A user's own rollout function against the real router, engines and trainer."""

import json
from pathlib import Path

from services.protocol.run.orchestrator import RunState
from tests.cluster.conftest import Cluster

ROLLOUT = """
async def rollout(client, task):
    messages, lengths = task.chat, []
    for _ in range(2):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        said = reply.choices[0].message.content or ""
        lengths.append(len(said))
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": "a plus b"})
    return float(sum(lengths) % 2)
"""


def test_episodes_of_two_turns_are_trained_on_and_nothing_of_them_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "environment.py"
    file.write_text(ROLLOUT)
    config = cluster.run_config(steps=2, environment=f"{file}:rollout")
    status = cluster.run_to_the_end(config)
    assert (status.state, status.step) == (RunState.FINISHED, 2), status.detail
    assert status.failures == {}
    ledger = status.ledger
    assert ledger.trained > 0
    assert ledger.admitted == ledger.trained + ledger.filtered + ledger.expired
    lines = (Path(status.run_dir) / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["trajectories_ungraded"] == 0 for line in lines)
    assert status.evaluations[0].graded == 4
