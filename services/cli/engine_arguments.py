"""Whether vLLM takes the `engine_args` of a deployment file.

Asked of a process of its own, which loads vLLM: the command line itself never does.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from pydantic import BaseModel

from services.protocol.errors import InvalidInput

_CHECK = "services.rollout_server.engine_arguments"
_ANSWER_S = 300.0


def check_engine_arguments(configs: Mapping[str, BaseModel], *, source: str) -> bool:
    """Check the rollout server's, if it has any.

    Args:
        configs: arguments by application.
        source: the deployment file, for messages.

    Returns:
        False where they could not be checked, for want of vLLM on this machine.

    Raises:
        InvalidInput: vLLM has no such argument, or does not take its value.
    """
    config = configs.get("rollout_server")
    if config is None or not getattr(config, "engine_args", None):
        return True
    if find_spec("vllm") is None:
        return False
    asked = [sys.executable, "-m", _CHECK]
    given = config.model_dump_json()
    try:
        done = subprocess.run(
            asked, input=given, capture_output=True, text=True, check=True, timeout=_ANSWER_S
        )
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        fix = f"vLLM could not be asked about them: {said}"
        raise InvalidInput(f"{source}: rollout_server.args.engine_args", "", fix) from None
    for line in done.stdout.splitlines()[-1:]:
        field, value, fix = json.loads(line)
        raise InvalidInput(f"{source}: rollout_server.args.{field}", value, fix)
    return True
