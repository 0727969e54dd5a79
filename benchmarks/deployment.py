"""The services of deploy/laptop.yaml on a private cluster, with the example's model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.demo.demo import (
    DEPLOY_FILE,
    SERVICES_S,
    DemoOptions,
    finish_model,
    model_maker,
    resolved,
)
from millrace_tools.deploy.wait import wait_until_leased
from services.protocol.yaml_text import load_yaml


@contextmanager
def deployed(
    options: DemoOptions, console: Console, **arguments: dict[str, Any]
) -> Iterator[PrivateCluster]:
    """Started and with leases on entry; nothing of it is left on exit.

    Args:
        options: seed of the model, port of the API.
        console: for the progress.
        arguments: that replace those of the file, by application.
    """
    cores = max(2, os.cpu_count() or 2)
    with model_maker(options) as maker, PrivateCluster(num_cpus=cores) as cluster:
        cluster.start()
        finish_model(maker)
        content = resolved(load_yaml(DEPLOY_FILE), options)
        for application in content["applications"]:
            application["args"] |= arguments.get(application["name"], {})
        replicas = cluster.deploy(content, console, timeout_s=SERVICES_S)
        wait_until_leased(options.url, replicas, timeout_s=SERVICES_S)
        yield cluster
