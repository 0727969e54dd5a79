"""The dashboards, in the order in which somebody debugs."""

from deploy.grafana.boards.engines import ENGINES
from deploy.grafana.boards.ledger import LEDGER
from deploy.grafana.boards.loop import LOOP
from deploy.grafana.boards.overview import OVERVIEW
from deploy.grafana.boards.rewards import REWARDS
from deploy.grafana.boards.router import ROUTER
from deploy.grafana.boards.trainer import TRAINER
from deploy.grafana.boards.weights import WEIGHTS

DASHBOARDS = (OVERVIEW, LOOP, LEDGER, ROUTER, ENGINES, WEIGHTS, REWARDS, TRAINER)

ABSENT: dict[str, str] = {}
"""Metrics that no panel shows, each with the reason."""
