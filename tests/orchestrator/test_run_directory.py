"""What a run leaves for people, drawn and written for real."""

import json
from pathlib import Path
from typing import Any

from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.orchestrator import RunConfig
from tests.orchestrator.fakes import metric_lines, run_to_end, world


async def test_the_run_directory_holds_what_people_look_for(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        sampling = {"temperature": 0.7, "max_tokens": 9}
        config = cluster.run_config(
            steps=3, evaluation={"tasks": 3, "every": 2}, seed=5, sampling=sampling
        )
        status = await run_to_end(cluster, config)
        folder = Path(status.run_dir)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["train_steps"] == 3
        assert summary["seed"] == 5
        assert summary["policy_version"] == cluster.trainer.version
        assert summary["weight_pushes"] == cluster.bus.pushes
        assert summary["heldout_pass_rate_before"] is not None
        assert summary["heldout_pass_rate_after"] is not None
        assert (folder / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
        assert RunConfig.from_yaml(folder / "config.yaml") == config
        measured = RunDirectory(folder).evaluations()
        assert [(one.step, one.graded, one.problem) for one in measured] == [
            (0, 3, ""),
            (2, 3, ""),
            (3, 3, ""),
        ]
        assert [line["step"] for line in metric_lines(status)] == [1, 2, 3]
        lines = (folder / "trajectories.jsonl").read_text().splitlines()
        shown = [json.loads(line) for line in lines]
        assert {one["answer"] for one in shown} <= {"good", "bad"}
        assert all((one["answer"] == "good") == (one["reward"] == 1.0) for one in shown)
        heldout = lines_of(folder / "heldout_answers.jsonl")
        assert sorted((one["step"], one["set"]) for one in heldout) == [
            (step, "heldout") for step in (0, 2, 3) for _ in range(3)
        ]
        assert all((one["answer"] == "good") == (one["reward"] == 1.0) for one in heldout)
        labels = {(one["source"], one["kind"]) for one in lines_of(folder / "groups.jsonl")}
        assert labels == {("tasks.jsonl", "python_function")}
        greedy = [asked for asked in cluster.router.asked if asked.body["temperature"] == 0]
        assert len(greedy) == 9
        assert all(a.body["messages"][0]["content"].startswith("heldout") for a in greedy)
        sampled = [asked for asked in cluster.router.asked if asked.body["temperature"] > 0]
        assert all(a.body["messages"][0]["content"].startswith("train") for a in sampled)
        assert cluster.trainer.starts[0].temperature == config.sampling.temperature


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_last_line_cut_short_by_a_kill_is_left_out_and_steps_can_be_taken_back(
    tmp_path: Path,
) -> None:
    directory = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        directory.metrics.write({"step": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4')
    assert [line["step"] for line in directory.metrics.lines()] == [1, 2, 3]
    directory.truncate_metrics(2)
    directory.metrics.write({"step": 3})
    assert [line["step"] for line in directory.metrics.lines()] == [1, 2, 3]
