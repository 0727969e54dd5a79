"""Environments of the package `verifiers`, played by the policy that is being trained.

They take an OpenAI client, and get the policy's. From 0.3 on there are tasksets beside them, and
in 0.4 tasksets alone: see `verifiers_tasksets`. The file that a run file names as its environment
has one line for it:

    rollout = verifiers_rollout("gsm8k")

and its tasks are written by

    python -m environments.verifiers gsm8k tasks.jsonl
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from environments.problems import problems_on_stderr
from environments.turns import Rollout
from environments.verifiers_tasksets import Tasks, examples_of, load_tasks, tasks_rollout
from services.protocol.errors import InvalidInput
from services.protocol.run.task import Task

_KEPT = ("answer", "info", "task")
_FEWEST = 2  # examples of an environment without an evaluation set


def load(name: str, **arguments: Any) -> Any:
    """The `verifiers` environment of this name, made with these arguments; or a taskset's tasks.

    Raises:
        InvalidInput: verifiers is not there, or is too old; or a server of a taskset's tools cannot
            be started.
    """
    try:
        library = import_module("verifiers")
        if _is_taskset(name):
            return load_tasks(name, **arguments)
        import_module("verifiers.clients")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "verifiers":
            raise
        fix = "It takes verifiers 0.1.11 to 0.4: `pip install 'millrace[verifiers]'`."
        raise InvalidInput("verifiers environment", name, fix) from None
    return library.load_environment(name, **arguments)


def _is_taskset(name: str) -> bool:
    """Whether it is no environment, of which 0.4 has none."""
    if find_spec("verifiers.envs") is None:
        return True
    try:
        module = import_module(name.rpartition("/")[2].replace("-", "_"))
    except ImportError:
        return False  # verifiers says better what is wrong
    return not hasattr(module, "load_environment")


def verifiers_rollout(name: str, **arguments: Any) -> Rollout:
    """A rollout function that plays an example of the environment; returns its rubric's reward.

    The run sets sampling parameters; those of the environment have no effect. An error inside
    the environment is an error of the episode, which then has no reward.

    Args:
        name: as verifiers knows it.
        arguments: of the environment, or of the taskset.

    Raises:
        InvalidInput: as for `load`.
    """
    if isinstance(environment := load(name, **arguments), Tasks):
        return tasks_rollout(name, environment)
    chat = import_module("verifiers.clients").OpenAIChatCompletionsClient

    async def rollout(client: AsyncOpenAI, task: Task) -> float:
        example = {"prompt": task.chat, "example_id": 0, **task.data}
        output = await environment.run_rollout(example, chat(client), "policy", {})
        if output.get("error"):
            raise RuntimeError(f"{name}: {output['error']}")
        return float(output["reward"])

    return rollout


def task_rows(environment: Any) -> Iterator[dict[str, Any]]:
    """The environment's examples as rows of a task file.

    Its evaluation set is held out. Without one a tenth of its training set is, or of a taskset's
    tasks, drawn at random and always the same.

    Raises:
        InvalidInput: there are too few examples to hold one out.
    """
    return (
        _row(split, number, example)
        for split, examples in _sets(environment).items()
        for number, example in enumerate(examples)
    )


def _sets(environment: Any) -> dict[str, Iterable[dict[str, Any]]]:
    """The examples by split; no example has both."""
    if isinstance(environment, Sequence):
        return _held_out(list(examples_of(environment)))
    examples, evaluation = environment.get_dataset(), environment.get_eval_dataset()
    # Without an evaluation set it answers with its training set. It may build the set when it is
    # asked, and only then says whether it has one.
    has_none = getattr(environment, "eval_dataset", evaluation) is None
    if evaluation is not examples and not has_none:
        return {"train": examples, "heldout": evaluation}
    return _held_out(examples)


def _held_out(examples: Any) -> dict[str, Iterable[dict[str, Any]]]:
    count = len(examples)
    if count < _FEWEST:
        fix = f"It has no evaluation set: give it one, or {_FEWEST} examples, of which one is held"
        raise InvalidInput("verifiers environment: examples", count, f"{fix} out.")
    drawn = set(random.Random(0).sample(range(count), max(1, count // 10)))
    return {
        "train": (examples[place] for place in range(count) if place not in drawn),
        "heldout": (examples[place] for place in sorted(drawn)),
    }


def _row(split: str, number: int, example: dict[str, Any]) -> dict[str, Any]:
    return {
        "task_id": f"{split}-{number}",
        "split": split,
        "messages": [
            {key: value for key, value in message.items() if value is not None}
            for message in example["prompt"]
        ],
        "data": {key: example[key] for key in _KEPT if example.get(key) is not None},
    }


@problems_on_stderr()
def main() -> None:
    """Write the tasks of an environment."""
    parser = argparse.ArgumentParser(description="Write a verifiers environment's tasks.")
    parser.add_argument("name", help="as `verifiers.load_environment` takes it")
    parser.add_argument("out", type=Path, help="task file to write, JSON lines")
    parser.add_argument("--arguments", type=json.loads, default={}, help="of it, as JSON")
    given = parser.parse_args()
    rows = task_rows(load(given.name, **given.arguments))
    with given.out.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
