"""Ray workers that are forked from a process which has imported their modules already.

A private cluster may have such processes, one for each stage (`fork_server.py` of the tools).
Here is how an actor says from which it wants its worker.
"""

import os
from enum import StrEnum
from typing import Any

STAGES_VARIABLE = "MILLRACE_FORK_STAGES"
"""Environment variable with the stages beyond `WORKER` that the cluster has."""

STAGE_VARIABLE = "MILLRACE_FORK_STAGE"
"""Environment variable of a worker's runtime environment: its stage."""


class Stage(StrEnum):
    """How much is imported; each stage has the modules of those before it, too."""

    WORKER = "worker"
    """Ray, Serve and the services' applications."""
    TRAINER = "trainer"
    """Torch, transformers and what a rank needs."""
    ENGINE = "engine"
    """vLLM and what a rollout server needs."""


def warmed(stage: Stage) -> dict[str, Any]:
    """Options of a Ray actor whose worker is to have this stage; none where nothing is forked."""
    if stage not in os.environ.get(STAGES_VARIABLE, "").split(","):
        return {}
    return {"runtime_env": {"env_vars": {STAGE_VARIABLE: str(stage)}}}
