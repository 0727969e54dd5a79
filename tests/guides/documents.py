"""What a YAML or JSON block of a guide must be: accepted by the class that reads it."""

import json
from typing import Any

import yaml
from pydantic import TypeAdapter
from ray.serve.schema import ServeDeploySchema

from millrace_tools.audit.checks.known import LabelledAnswers
from millrace_tools.chaos.script import Script
from services.access.api_keys import ApiKey
from services.orchestrator.config import OrchestratorConfig
from services.page.config import PageConfig
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.code_tests import CodeTest
from services.protocol.reward.grader import Grader
from services.protocol.reward.workspace_tests import GradeWorkspace
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import LIVE, Task
from services.protocol.strict import StrictModel
from services.reward_service.config import RewardServiceConfig
from services.reward_service.workspaces.config import WorkspacesConfig
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig

ARGUMENTS: dict[str, type[StrictModel]] = {
    "orchestrator": OrchestratorConfig,
    "page": PageConfig,
    "reward_service": RewardServiceConfig,
    "rollout_server": RolloutServerConfig,
    "router": RouterConfig,
    "sandboxes": WorkspacesConfig,
    "trainer": TrainerConfig,
    "weight_bus": WeightBusConfig,
}
OF_OTHERS = {"scrape_configs", "apiVersion"}
"""Keys of Prometheus' and Kubernetes' documents: that they are YAML is all that is checked here."""

RUN = {"name": "r", "model": "m", "steps": 100, "batch_groups": 1, "group_size": 2}


def check_yaml(text: str) -> None:
    """Have the piece checked by the class whose keys it has.

    Raises:
        Exception: the class's own, or AssertionError where no class knows these keys.
    """
    data = yaml.safe_load(text)
    if isinstance(data, dict) and set(data) & OF_OTHERS:
        return
    if isinstance(data, list) and all(one.get("name") in ARGUMENTS for one in data):
        for one in data:
            check_application(one)
    elif isinstance(data, list):
        TypeAdapter(list[ApiKey]).validate_python(data)
    elif set(data) <= set(Script.model_fields):
        Script.from_data(data, source="guide")
    elif set(data) <= set(RunConfig.model_fields):
        said = "tasks" in data or "task_file" in data or data.get("environment") == LIVE
        tasks = {} if said else {"task_file": "tasks.jsonl"}
        RunConfig.from_data(RUN | tasks | data, source="guide")
    elif set(data) <= set(RewardServiceConfig.model_fields):
        RewardServiceConfig.from_data(data, source="guide")
    elif set(data) <= set(CodeGrader.model_fields):
        CodeGrader.from_data({"kind": "code"} | data, source="guide")
    else:
        _check_deployment(data)


def check_application(one: dict[str, Any]) -> None:
    """Check an application's arguments, where a guide leaves out what it is not about."""
    model = ARGUMENTS[one["name"]]
    left_out = {"model": "m"} if model in (RolloutServerConfig, TrainerConfig) else {}
    model.from_data(left_out | one.get("args", {}), source=one["name"])
    _check_deployment({"applications": [one]})


def _check_deployment(data: dict[str, Any]) -> None:
    given = enumerate(data.get("applications", []))
    applications = [{"import_path": "a.b:c", "route_prefix": f"/{n}", **one} for n, one in given]
    whole = data | {"applications": applications}
    ServeDeploySchema.model_validate(whole, extra="forbid")


def check_json(text: str) -> None:
    """Have each line, or the whole, checked as a task, known answers to one, a grader, the tests
    of a grader or of a workspace."""
    try:
        documents = [json.loads(text)]
    except json.JSONDecodeError:
        documents = [json.loads(line) for line in text.splitlines()]
    for one in documents:
        if isinstance(one, list):
            TypeAdapter(list[CodeTest]).validate_python(one)
        elif {"good", "bad"} & set(one):
            LabelledAnswers.from_data(one, source="guide")
        elif "task_id" in one:
            Task.model_validate(one)
        elif set(one) <= set(GradeWorkspace.model_fields):
            GradeWorkspace.from_data(one, source="guide")
        else:
            TypeAdapter(Grader).validate_python(one)
