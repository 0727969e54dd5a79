"""examples/shop: its tasks, its tools and its model's teaching are what the README says."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from examples.shop import environment, tasks
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.task import Task

FOLDER = Path(tasks.__file__).parent


class Clerk:
    """A client that says these lines in turn; `heard` is the last conversation."""

    def __init__(self, *lines: str) -> None:
        self._lines = list(lines)
        self.heard: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[dict[str, Any]], **_: object) -> SimpleNamespace:
        self.heard = list(messages)
        message = SimpleNamespace(content=self._lines.pop(0))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


@pytest.mark.parametrize("right", [True, False])
async def test_a_clerk_who_multiplies_is_paid_and_one_who_adds_is_not(right: bool) -> None:
    for place, purchase in enumerate(tasks.purchases()[:40]):
        turns = purchase.turns(right=right)
        clerk = Clerk(*(said for said, _ in turns))
        task = Task.model_validate(purchase.row(place, "train"))
        assert await environment.rollout(clerk, task) == float(right)
        told = [m["content"] for m in clerk.heard if m["role"] == "user"][1:]
        assert told == [answer for _, answer in turns[:-1]], "what the demonstrations were told"


@pytest.mark.parametrize("right", [True, False])
async def test_steps_towards_the_sum_are_rewarded_by_turn_and_by_name(right: bool) -> None:
    purchase = tasks.purchases()[0]
    task = Task.model_validate(purchase.row(0, "train"))
    # A step that is repeated earns once, or a clerk would be paid for not ending.
    price, *others = (said for said, _ in purchase.turns(right=right))
    lines = (price, price, *others)
    earned = [environment.STEP, 0.0, environment.STEP if right else 0.0, float(right)]
    assert await environment.by_turn(Clerk(*lines), task) == earned
    named = {"paid": float(right), "steps": 1.0 + right}
    assert await environment.by_name(Clerk(*lines), task) == named
    never = Clerk(*[price] * 5)
    assert await environment.by_name(never, task) == {"paid": 0.0, "steps": 1.0}


@pytest.mark.parametrize(
    "said", ["", "price", "price gold", "times 3", "times 3 x", "pay", "pay 3 4", "over 1 2"]
)
async def test_a_mistake_is_an_answer_and_never_an_error(said: str) -> None:
    task = Task.model_validate(tasks.purchases()[0].row(0, "train"))
    assert await environment.rollout(Clerk(*[said] * 5), task) == 0.0


def test_no_task_shows_its_price_and_the_files_can_be_run(tmp_path: Path) -> None:
    for name in ("run.yaml", "environment.py"):
        shutil.copy(FOLDER / name, tmp_path)
    rows = tasks.rows()
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert all(
        str(row["data"]["total"]) not in row["messages"][0]["content"].split()[1:] for row in rows
    )
    run = read_run_file(tmp_path / "run.yaml")
    deploy = yaml.safe_load((FOLDER / "laptop.yaml").read_text())
    args = {one["name"]: one["args"] for one in deploy["applications"]}
    assert run.model == args["rollout_server"]["served_model_name"]
    assert args["orchestrator"]["environments"] is True
    assert args["trainer"]["model"] == args["rollout_server"]["model"] == "models/shop-seed0"


def test_the_deployment_has_every_service_of_the_laptops_the_page_too() -> None:
    deploy, laptop = (
        yaml.safe_load(path.read_text())
        for path in (FOLDER / "laptop.yaml", FOLDER.parents[1] / "deploy" / "laptop.yaml")
    )
    names = [one["name"] for one in deploy["applications"]]
    assert names == [one["name"] for one in laptop["applications"]]
    assert "page" in names
