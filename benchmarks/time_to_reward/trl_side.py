"""GRPO on examples/tiny_code by TRL's own trainer and loop. Runs in TRL's own environment.

Reads `job.json` in the folder given and prints a line of JSON when training begins and after
every evaluation. Evaluations stop the clock.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.models import on_cpu
from benchmarks.time_to_reward.grading import GRADINGS, rewards


class Evaluations(TrainerCallback):
    """Measures the held-out pass rate now and then, and stops training at the goal."""

    def __init__(self, job: dict[str, Any], model: Any, tokenizer: Any) -> None:
        self._goal, run = job["goal"], job["run"]
        self._max_tokens = run["sampling"]["max_tokens"]
        self._minibatches = run["algorithm"]["minibatches"]
        self._model, self._tokenizer = model, tokenizer
        rows = tasks(run["task_file"], "heldout")[: run["evaluation"]["tasks"]]
        self._tests = [row["tests"] for row in rows]
        self._prompts = [
            tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
            for row in rows
        ]
        self._wall = self._cpu = 0.0
        self._since: tuple[float, float] = (0.0, 0.0)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """See `TrainerCallback`."""
        print(json.dumps({"event": "training begins", "cpu_s": cpu_s()}), flush=True)
        self._report("rate", 0, self.pass_rate(), reached=False)
        self._since = time.perf_counter(), cpu_s()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        now = time.perf_counter(), cpu_s()
        self._wall += now[0] - self._since[0]
        self._cpu += now[1] - self._since[1]
        step, within = divmod(state.global_step, self._minibatches)
        late = self._wall > self._goal["seconds"] or step >= self._goal["steps"]
        if not within and (late or step % self._goal["every"] == 0):
            rate = self.pass_rate()
            reached = rate >= self._goal["pass_rate"]
            self._report("end" if reached or late else "rate", step, rate, reached=reached)
            control.should_training_stop = reached or late
        self._since = time.perf_counter(), cpu_s()

    def _report(self, event: str, step: int, rate: float, *, reached: bool) -> None:
        message = {"event": event, "step": step, "pass_rate": rate, "reached": reached}
        print(json.dumps(message | {"train_s": self._wall, "cpu_s": self._cpu}), flush=True)

    @torch.no_grad()
    def pass_rate(self) -> float:
        """Of greedy answers to the held-out tasks."""
        batch = self._tokenizer(
            self._prompts, return_tensors="pt", padding=True, padding_side="left"
        )
        width = batch["input_ids"].shape[1]
        self._model.eval()
        found = self._model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=self._max_tokens,
            do_sample=False,
        )
        self._model.train()
        texts = self._tokenizer.batch_decode(found[:, width:], skip_special_tokens=True)
        return sum(rewards(texts, self._tests)) / len(texts)


def tasks(file: str, split: str) -> list[dict[str, Any]]:
    """Rows of the task file as TRL's data set wants them."""
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return [
        {"prompt": row["messages"], "tests": json.dumps(row["grader"]["tests"])}
        for row in rows
        if row["split"] == split
    ]


def config_of(job: dict[str, Any], folder: Path) -> GRPOConfig:
    """TRL's defaults but for the settings of the run, and for those that only slow a CPU down."""
    run, algorithm, sampling = job["run"], job["run"]["algorithm"], job["run"]["sampling"]
    minibatches = algorithm["minibatches"]
    return GRPOConfig(
        **on_cpu(folder),
        seed=run["seed"],
        per_device_train_batch_size=run["batch_groups"] * run["group_size"] // minibatches,
        steps_per_generation=minibatches,
        num_generations=run["group_size"],
        max_steps=job["goal"]["steps"] * minibatches,
        max_completion_length=sampling["max_tokens"],
        temperature=sampling["temperature"],
        learning_rate=algorithm["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=algorithm["grad_clip"],
        epsilon=algorithm["clip_low"],
        epsilon_high=algorithm["clip_high"],
    )


def cpu_s() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def main() -> None:
    """Train until the goal or a limit."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[GRADINGS[job["grading"]]],
        train_dataset=Dataset.from_list(tasks(job["run"]["task_file"], "train")),
        args=config_of(job, folder),
        callbacks=[Evaluations(job, model, tokenizer)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
