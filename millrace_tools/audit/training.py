"""Real training within an audit: runs on a private cluster of this machine, one for each seed."""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.audit.checks.training import PAGE, TrainedRun
from millrace_tools.capacity.machine import free_port
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.comparison import comparison_of
from millrace_tools.demo.demo import SERVICES_S, terminated_like_interrupted
from millrace_tools.demo.init import starter_files
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import arguments_of, move_to
from millrace_tools.run.follow import follow
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.page.report.report import report
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunStatus
from services.protocol.yaml_text import load_yaml

SEEDS = (0, 1, 2)
_LONGEST_MODEL = 4096
_PLAYER_ENDS_S = 60.0
_OF_USER = ("reward_service", "sandboxes")


class Training:
    """Trains the model of `--train-model`, or of the deployment, on the audited run's tasks.

    Args:
        arguments: of the command.

    Raises:
        InvalidInput: there is no such model, or the deployment cannot be used.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._port = free_port()
        self._url = f"http://127.0.0.1:{self._port}"
        self._content = _deployment(arguments, self._port)
        Deployment.check(self._content, source=arguments.deployment or "deploy/laptop.yaml")

    def outcome(self, console: Console) -> list[TrainedRun] | str:
        """A run for each seed, each time from the model's first weights; or why there is none.

        The runs stay in `runs` of the report's folder, and their curves in `training.html`.
        """
        try:
            return self._run(console)
        except (NotReady, InvalidInput) as problem:  # what the audit has found is not lost by it
            return str(problem)

    def _run(self, console: Console) -> list[TrainedRun]:
        # Importing Ray takes seconds.
        from millrace_tools.cluster.private_cluster import PrivateCluster

        ended: list[RunStatus] = []
        cores = max(2, os.cpu_count() or 2)
        with terminated_like_interrupted(), PrivateCluster(num_cpus=cores) as cluster:
            cluster.start()
            replicas = cluster.deploy(self._content, console, timeout_s=SERVICES_S)
            wait_until_leased(self._url, replicas, timeout_s=SERVICES_S)
            with RunsClient(self._url) as client, self._agents():
                for seed in SEEDS:
                    config = read_run_file(
                        self._arguments.run_file, seed=seed, steps=self._arguments.train_steps
                    )
                    root = str((self._arguments.out / "runs").resolve())
                    started = client.start(config.model_copy(update={"run_root": root}))
                    ended.append(follow(client, started, console))
        page = report(comparison_of([one.run_dir for one in ended]))
        (self._arguments.out / PAGE).write_text(page, encoding="utf-8")
        return [_trained(seed, one) for seed, one in zip(SEEDS, ended, strict=True)]

    @contextlib.contextmanager
    def _agents(self) -> Iterator[None]:
        """The program of `--agent` plays the runs' episodes."""
        if not self._arguments.agent:
            yield
            return
        logs = self._arguments.out / "agent-runs"
        command = [sys.executable, "-m", "millrace_tools.main", "agent-run", "--url", self._url]
        command += ["--parallel", str(self._arguments.parallel), "--logs", str(logs), "--"]
        command += shlex.split(self._arguments.agent)
        player = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            player.terminate()
            try:
                player.wait(_PLAYER_ENDS_S)
            except subprocess.TimeoutExpired:
                player.kill()
                player.wait()


def _deployment(arguments: argparse.Namespace, port: int) -> Any:
    """The Serve file's content, at this port, with the model that is to be trained."""
    own = load_yaml(arguments.deployment) if arguments.deployment else {"applications": []}
    model = arguments.train_model
    try:
        if model is None and "trainer" not in arguments_of(own):
            fix = "Name a small model that this machine can train: --train-model FOLDER."
            raise InvalidInput("--train-steps", arguments.train_steps, fix)
        content = own if model is None else _laptop(own)
        move_to(content, port)
        given = arguments_of(content)
        given["orchestrator"]["environments"] = True
    except (KeyError, TypeError, AttributeError):
        fix = "It needs the applications of deploy/laptop.yaml; ask `millrace check FILE`."
        raise InvalidInput("--deployment", arguments.deployment, fix) from None
    if model is not None:
        folder = str(Path(model).resolve())
        given["trainer"]["model"] = given["rollout_server"]["model"] = folder
        given["rollout_server"]["served_model_name"] = read_run_file(arguments.run_file).model
        given["rollout_server"]["max_model_len"] = _length(model)
    return content


def _laptop(own: Any) -> Any:
    """The services of a laptop, with the user's graders and sandboxes."""
    content = load_yaml(starter_files() / "deploy" / "laptop.yaml")
    kept = {one["name"]: one for one in own["applications"] if one["name"] in _OF_USER}
    others = [one for one in content["applications"] if one["name"] not in kept]
    content["applications"] = [*kept.values(), *others]
    return content


def _length(folder: str) -> int:
    """Tokens that the model may see at once."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return min(_LONGEST_MODEL, int(config["max_position_embeddings"]))
    except (OSError, ValueError, KeyError, TypeError):
        fix = "Give the folder of a model: config.json, weights and tokenizer."
        raise InvalidInput("--train-model", folder, fix) from None


def _trained(seed: int, ended: RunStatus) -> TrainedRun:
    lines = RunDirectory(ended.run_dir).metrics.lines()
    # There is none while a run warms up on given answers.
    rewards = tuple(float(line["reward"]) for line in lines if line["reward"] is not None)
    return TrainedRun(seed=seed, rewards=rewards, state=ended.state, detail=ended.detail)
