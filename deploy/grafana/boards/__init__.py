"""The dashboards, in the order in which somebody debugs; each is described by a YAML file here."""

from pathlib import Path

from deploy.grafana.board import Board
from services.protocol.yaml_text import load_yaml

NAMES = ("overview", "loop", "ledger", "router", "engines", "weights", "rewards", "trainer")
BOARDS = tuple(
    Board.model_validate(load_yaml(Path(__file__).with_name(f"{name}.yaml")) | {"name": name})
    for name in NAMES
)

ABSENT: dict[str, str] = {}
"""Metrics that no panel shows, each with the reason."""
