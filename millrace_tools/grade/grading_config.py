"""The reward service's configuration for a grading without a cluster."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from millrace_tools.deploy.file_kind import SERVE, refuse_other_kind
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.grader import (
    AnyGrader,
    HttpGrader,
    JudgeGrader,
    PythonGrader,
    WeightedGrader,
)
from services.protocol.yaml_text import load_yaml
from services.reward_service.config import RewardServiceConfig

SERVICE = "reward_service"
_PATIENCE_S = 1e6


def grading_config(
    graders: Iterable[AnyGrader], *, source: str, deployment: str | None
) -> RewardServiceConfig:
    """One sandbox, and the user's own graders as the deployment file registers them.

    The environment variables that the file gives the service are set here, too.

    Args:
        graders: of the answers.
        source: the file that has them, for messages.
        deployment: the file, if there is one.

    Raises:
        InvalidInput: the file cannot be used, or the grader cannot without a cluster.
    """
    home = os.path.expanduser("~")  # stays so for a user without a home: then no header is kept
    here: dict[str, Any] = {
        "slots": 1,
        "queue_wait_s": _PATIENCE_S,  # nobody else waits, and there may be many references
        "answer_deadline_s": 2 * _PATIENCE_S,
        "header_cache_dir": None if home == "~" else f"{home}/.cache/millrace/headers",
    }
    config = RewardServiceConfig(**here)
    if deployment is not None:
        config = _of_deployment(deployment).model_copy(update=here)
    for one in (part for grader in graders for part in _parts(grader)):
        if (problem := _problem(one, config, deployment)) is not None:
            raise InvalidInput(f"{source}: {problem.field}", problem.value, problem.fix)
    return config


def _of_deployment(path: str) -> RewardServiceConfig:
    data = load_yaml(path)
    refuse_other_kind(data, SERVE, path)
    applications = data.get("applications") if isinstance(data, dict) else None
    given = [one for one in applications or [] if isinstance(one, dict)]
    service = next((one for one in given if one.get("name") == SERVICE), None)
    if service is None:
        raise InvalidInput(f"{path}: applications", SERVICE, "The file has no such application.")
    config = RewardServiceConfig.from_data(service.get("args") or {}, source=f"{path}: {SERVICE}")
    variables = _variables(service.get("runtime_env"))
    os.environ.update(variables)
    folders = variables.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = filter(None, folders)  # the process of the graders gets it
    return config


def _variables(runtime_env: Any) -> dict[str, str]:
    found = runtime_env.get("env_vars") if isinstance(runtime_env, dict) else None
    return {str(name): str(value) for name, value in found.items()} if found else {}


def _parts(grader: AnyGrader) -> Iterator[AnyGrader]:
    if isinstance(grader, WeightedGrader):
        yield from (part.grader for part in grader.parts)
    else:
        yield grader


def _problem(
    grader: AnyGrader, config: RewardServiceConfig, deployment: str | None
) -> InvalidInput | None:
    """Why the grader cannot grade here, None if it can."""
    if isinstance(grader, CodeGrader) and grader.test_set is not None:
        fix = "There are no test sets without a cluster: give the tests."
        return InvalidInput("test_set", grader.test_set, fix)
    if isinstance(grader, HttpGrader):
        known, key = grader.name in config.http_graders, "http_graders"
    elif isinstance(grader, JudgeGrader):
        known, key = grader.name in config.judges, "judges"
    elif isinstance(grader, PythonGrader):
        known = bool(config.grader_modules) or grader.name in config.graders
        key = "graders or grader_modules"
    else:
        return None
    if known:
        return None
    fix = f"Give --deployment FILE: the Serve file whose {SERVICE} registers it ({key})."
    if deployment is not None:
        fix = f"{deployment} registers no such grader ({SERVICE}.args: {key})."
    return InvalidInput("grader.name", grader.name, fix)
