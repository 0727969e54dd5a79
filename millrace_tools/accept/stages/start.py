"""Starts the services; the stages behind it use them."""

import time

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.report import Figure
from millrace_tools.accept.stage import Outcome, Stage


def start(bench: Bench, deadline: Deadline) -> Outcome:
    """All services of deploy/laptop.yaml, on the GPUs where there are some."""
    from millrace_tools.accept.services import start_services  # imports Ray

    began = time.monotonic()
    bench.services = start_services(bench, deadline)
    figures = (
        Figure(name="until the first lease", value=time.monotonic() - began, unit="s"),
        Figure(name="engines", value=bench.services.replicas),
    )
    return Outcome(figures=figures)


STAGES = (
    Stage(
        name="services",
        purpose="every service starts on a private cluster, and every engine gets weights",
        deadline_s=900.0,
        run=start,
    ),
)
