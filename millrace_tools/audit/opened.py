"""A run file, opened to play its tasks here."""

import argparse
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millrace_tools.audit.around.sandboxes import Sandboxes
from millrace_tools.audit.subject import Policy, Subject, audited_tasks
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.grade.grading_config import grading_config
from services.protocol.run.task import Task
from services.protocol.yaml_text import load_yaml
from services.reward_service.scoring import Scoring
from services.reward_service.workspaces.config import WorkspacesConfig


@asynccontextmanager
async def opened(
    arguments: argparse.Namespace, policy: Policy
) -> AsyncIterator[tuple[list[Task], Subject]]:
    """The tasks that are played, and what plays them.

    Raises:
        InvalidInput: the run file or a grader of it cannot be used.
    """
    run = read_run_file(arguments.run_file)
    agent = shlex.split(arguments.agent or "")
    tasks = audited_tasks(run, arguments.tasks, agent=bool(agent))
    graders = [task.grader for task in tasks if task.grader is not None]
    config = grading_config(graders, source=arguments.run_file, deployment=arguments.deployment)
    scoring = Scoring(config)
    await scoring.start()
    sandboxes = Sandboxes(_sandboxes(arguments.deployment), scoring)
    policy.sandboxes = sandboxes.answer
    try:
        async with Subject(
            run,
            policy,
            scoring,
            at_once=arguments.parallel,
            timeout_s=arguments.timeout,
            agent=agent,
        ) as subject:
            yield tasks, subject
    finally:
        await sandboxes.aclose()
        await scoring.tools.aclose()


def _sandboxes(deployment: str | None) -> WorkspacesConfig:
    """As the deployment's application has it, where there is one."""
    applications = (load_yaml(deployment) if deployment else {}).get("applications") or ()
    for one in applications:
        if one.get("name") == "sandboxes":
            return WorkspacesConfig.from_data(one.get("args") or {}, source=f"{deployment}")
    return WorkspacesConfig()
