"""Checks with vLLM the `engine_args` of a deployment file.

Another process does it, because the command line never loads vLLM.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from pydantic import BaseModel

from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import environment

_CHECK = "services.rollout_server.engine.engine_arguments"
_ANSWER_S = 300.0


def check_engine_arguments(configs: Mapping[str, BaseModel], *, source: str) -> bool:
    """Check the rollout server's, if it has any.

    Args:
        configs: arguments by application.
        source: the deployment file, for messages.

    Returns:
        False where they could not be checked, for want of vLLM on this machine.

    Raises:
        InvalidInput: vLLM has no such argument, does not take its value, or could not be asked.
    """
    config = configs.get("rollout_server")
    if not isinstance(config, RolloutServerConfig) or not config.engine_args:
        return True
    if find_spec("vllm") is None:
        return False
    place = f"{source}: rollout_server.args"
    try:
        done = subprocess.run(
            [sys.executable, "-m", _CHECK],
            env=os.environ | environment(config),
            # Engines do not read these two, which the file's `deployments` may have changed.
            input=config.model_dump_json(exclude={"replicas", "max_replicas"}),
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        fix = f"vLLM did not check them within {_ANSWER_S:g} s: try again."
        raise InvalidInput(f"{place}.engine_args", config.engine_args, fix) from None
    if done.returncode:
        error = done.stderr.strip().rpartition("\n")[2] or "nothing"
        fix = f"vLLM could not check them: exit status {done.returncode}, {error}"
        raise InvalidInput(f"{place}.engine_args", config.engine_args, fix)
    if refused := json.loads(done.stdout.splitlines()[-1]):
        field, value, fix = refused
        raise InvalidInput(f"{place}.{field}", value, fix)
    return True
