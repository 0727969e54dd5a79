"""Every alert has an entry in the runbook, and what the entries name exists."""

import re
import shlex
from pathlib import Path

import pytest
from ray.scripts.scripts import cli as ray_cli
from ray.serve.scripts import cli as serve_cli

from deploy.grafana.boards import BOARDS
from millrace_tools.main import command_parser
from services.orchestrator.config import OrchestratorConfig
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.schedule import ScheduleConfig
from services.reward_service.config import RewardServiceConfig
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig
from services.weight_bus.config import WeightBusConfig
from tests.deploy.test_prometheus import alerts

DOCS = Path(__file__).parents[2] / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text()
ENTRIES = dict(re.findall(r"^### (\w+)\n\n(.+?)(?=\n##|\Z)", RUNBOOK, re.M | re.S))
CONFIGURATIONS = {
    "checkpoint": RunConfig.model_fields["checkpoint"].annotation,
    "orchestrator": OrchestratorConfig,
    "reward_service": RewardServiceConfig,
    "rollout_server": RolloutServerConfig,
    "router": RouterConfig,
    "schedule": ScheduleConfig,
    "trainer": TrainerConfig,
    "weight_bus": WeightBusConfig,
}


def test_every_alert_has_an_entry_and_every_entry_an_alert() -> None:
    assert ENTRIES.keys() == alerts().keys()
    for name, text in ENTRIES.items():
        parts = [line[2:-2] for line in re.findall(r"^\*\*\w+\.\*\*", text, re.M)]
        assert parts == ["Means.", "See.", "Do."], name


def test_entries_name_alerts_and_panels_that_exist() -> None:
    assert set(re.findall(r"Millrace[A-Z]\w+", RUNBOOK)) == alerts().keys()
    linked = {panel.runbook for board in BOARDS for panel in board.panels} - {""}
    assert linked <= alerts().keys()


def test_the_settings_that_entries_name_exist() -> None:
    named = re.findall(rf"\b({'|'.join(CONFIGURATIONS)})\.(?!md)([a-z_]+)", RUNBOOK)
    assert len(named) > 20
    for service, key in named:
        assert key in CONFIGURATIONS[service].model_fields, f"{service}.{key}"


def _commands() -> list[str]:
    blocks = re.findall(r"^```bash\n(.+?)^```", RUNBOOK, re.M | re.S)
    rest = re.sub(r"^```.+?^```", "", RUNBOOK, flags=re.M | re.S)
    inline = re.findall(r"`([^`]+)`", rest)
    lines = [line for block in blocks for line in block.splitlines()] + inline
    return sorted({line for line in lines if line.split()[0] in ("millrace", "ray", "serve")})


@pytest.mark.parametrize("command", _commands())
def test_the_commands_that_entries_give_exist(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "millrace":
        command_parser().parse_args(arguments)
    else:
        known = {"ray": ray_cli, "serve": serve_cli}[program].commands
        assert arguments[0] in known
