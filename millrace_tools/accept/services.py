"""The services on a private cluster of this machine, as the stages use them."""

import asyncio
import contextlib
import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.accept.bench import Bench
from millrace_tools.accept.deadline import Deadline
from millrace_tools.accept.stage import NotTried
from millrace_tools.capacity.machine import check_memory, free_port
from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.cluster.private_cluster import PrivateCluster
from millrace_tools.demo.demo import DemoOptions, finish_model, model_maker, resolved
from millrace_tools.demo.init import is_clone, workplace, write_starter
from millrace_tools.deploy.deployment import Deployment
from millrace_tools.deploy.wait import wait_until_leased
from millrace_tools.deploy.wiring import arguments_of
from services.peers import bus_peer
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import MemberTable
from services.protocol.yaml_text import load_yaml
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import environment

MODEL = "tiny_code"
MEMORY_GIB = 6.0
_CONTEXT = 1024
_CHECKPOINTS = 100  # a stage reads those of all train steps
_POLL_S = 0.3
_ORDER_S = 120.0

Changes = Mapping[str, Mapping[str, Any]]
"""Arguments of applications that differ from those that run."""


class RunEndedBadly(Exception):
    """A run did not finish."""


@dataclass(kw_only=True)
class Services:
    """Running services.

    Attributes:
        url: of the router.
        model_dir: folder of the model that training begins with.
        runs: folder of run directories.
        replicas: rollout servers.
        content: of the deployment file.
        cluster: on which they run.
        console: for the status of those that start again.
    """

    url: str
    model_dir: Path
    runs: Path
    replicas: int
    content: Any = None
    cluster: PrivateCluster | None = None
    console: Console = field(default_factory=lambda: Console(quiet=True))

    def table(self) -> MemberTable:
        """The weight bus's table of members."""
        return asyncio.run(bus_peer().watch(-1, 0.0))

    def wait_until_whole(self, deadline: Deadline) -> None:
        """Return when every replica has a lease.

        Raises:
            StageLate: not in time.
        """
        deadline.wait_until(self._is_whole, "every replica has weights and a lease")

    def wait_until_replaced(self, replica_id: str, deadline: Deadline) -> None:
        """Return when every replica has a lease, and none of them is this one, which died.

        Raises:
            StageLate: not in time.
        """
        gone = f"another replica in place of {replica_id}"
        deadline.wait_until(lambda: not self._is_leased(replica_id), gone)
        self.wait_until_whole(deadline)

    def _is_leased(self, replica_id: str) -> bool:
        return any(one.replica_id == replica_id for one in self.table().leased)

    def order(
        self, replica_id: str, action: str, deadline: Deadline, *, level: int | None = None
    ) -> None:
        """Give a replica an operator's order through the weight bus, and wait for its end.

        Raises:
            InvalidInput: the replica refuses it.
            ControlFailed: it failed, or did not report in time.
        """
        left_s = min(_ORDER_S, deadline.left_s(f"{action} of {replica_id}"))
        asyncio.run(bus_peer().control(replica_id, action, level, left_s))

    def versions(self) -> tuple[VersionRecord, ...]:
        """What became of the newest versions, oldest first."""
        return asyncio.run(bus_peer().versions())

    def _is_whole(self) -> bool:
        try:
            return len(self.table().leased) == self.replicas
        except NotReady:
            return False

    def change(self, changes: Changes, deadline: Deadline) -> None:
        """Deploy applications again with other arguments, and wait until they serve.

        Raises:
            NotTried: the deployment's check refuses them.
            NotReady: they do not come up.
            StageLate: not in time.
        """
        assert self.cluster is not None, "only a cluster of one's own is changed"
        content = changed(self.content, changes)
        check(content)
        bus = self.table().bus_id if "weight_bus" in changes else ""
        applications = [one for one in content["applications"] if one["name"] in changes]
        left_s = deadline.left_s("services with other arguments")
        self.cluster.deploy(
            content | {"applications": applications}, self.console, timeout_s=left_s
        )
        self.content = content
        self.replicas = arguments_of(content)["rollout_server"]["replicas"]
        if bus:
            deadline.wait_until(lambda: self._bus_id() not in ("", bus), "another weight bus")
        self.wait_until_whole(deadline)

    def _bus_id(self) -> str:
        try:
            return self.table().bus_id
        except NotReady:
            return ""

    def run_config(self, **changes: Any) -> RunConfig:
        """The example's run with other keys."""
        run = DemoOptions(seed=0, port=0, steps=None).read_run()
        own = {"run_root": str(self.runs), "evaluation": {"tasks": 1}}
        return RunConfig.model_validate(run.model_dump() | own | changes)

    def run(self, config: RunConfig, deadline: Deadline) -> RunStatus:
        """See `running`."""
        return asyncio.run(self.running(config, deadline))

    async def running(self, config: RunConfig, deadline: Deadline) -> RunStatus:
        """Start a run and wait for its end; stop it where that does not come.

        Raises:
            RunEndedBadly: it did not finish.
            StageLate: not in time.
        """
        with RunsClient(self.url) as client:
            run_id = client.start(config).run_id
            try:
                status = await _ended(client, run_id, deadline)
            except BaseException:
                with contextlib.suppress(NotReady, InvalidInput):
                    client.control(run_id, "stop")
                raise
        if status.state is not RunState.FINISHED:
            raise RunEndedBadly(f"the run {status.state}: {status.detail}")
        return status


async def _ended(client: RunsClient, run_id: str, deadline: Deadline) -> RunStatus:
    while True:
        with contextlib.suppress(NotReady):  # for a moment, on a busy machine
            status = await asyncio.to_thread(client.status, run_id)
            if status.state in ENDED:
                return status
        await asyncio.sleep(min(_POLL_S, deadline.left_s(f"the end of run {run_id}")))


def start_services(bench: Bench, deadline: Deadline) -> Services:
    """Start a private cluster with all services, which ends with the bench.

    Raises:
        InvalidInput: the machine has too little memory.
        NotReady: Ray, the model or a service does not come up; logs are in the bench's folder.
    """
    check_memory(MEMORY_GIB)
    if not is_clone():
        write_starter(workplace())
    options = DemoOptions(seed=0, port=free_port(), steps=None)
    content = for_machine(resolved(load_yaml(options.deploy_file), options), bench.gpus)
    cluster = PrivateCluster(
        num_cpus=max(2, os.cpu_count() or 2),
        num_gpus=bench.gpus,
        # Engines on GPUs import their own modules: a fork must not inherit a CUDA context.
        engine=None if bench.gpus else _engine_environment(content),
    )
    with model_maker(options) as maker:
        bench.ending.enter_context(cluster)
        try:
            cluster.start()
            finish_model(maker)
            left_s = deadline.left_s("the services")
            replicas = cluster.deploy(content, bench.console, timeout_s=left_s)
            left_s = deadline.left_s("weights and leases")
            wait_until_leased(options.url, replicas, timeout_s=left_s)
        except BaseException:
            cluster.keep_logs(bench.folder / "logs")
            cluster.close()
            raise
    return Services(
        url=options.url,
        model_dir=options.model,
        runs=(bench.folder / "runs").resolve(),
        replicas=replicas,
        content=content,
        cluster=cluster,
        console=bench.console,
    )


def for_machine(content: Any, gpus: int) -> Any:
    """The laptop's deployment file for this many GPUs.

    With one GPU an engine has it and the trainer computes on the CPU; from two on the trainer has
    one; from three on, and without any, there are two engines.
    """
    changes: dict[str, dict[str, Any]] = {
        "trainer": {"checkpoints_kept": _CHECKPOINTS},
        "rollout_server": {
            "replicas": 1 if gpus in (1, 2) else 2,
            "max_model_len": _CONTEXT,
        },
    }
    if gpus:
        changes["trainer"]["dtype"] = "bfloat16"
        changes["rollout_server"] |= {
            "device": "cuda",
            "dtype": "bfloat16",
            "engine_args": {"enable_sleep_mode": True},
        }
    if gpus > 1:
        changes["trainer"] |= {"device": "cuda", "gpus_per_rank": 1}
    return changed(content, changes)


def changed(content: Any, changes: Changes) -> Any:
    """A deployment file's content with other arguments."""
    made = copy.deepcopy(content)
    arguments = arguments_of(made)
    for name, own in changes.items():
        arguments[name] |= own
    return made


def check(content: Any) -> None:
    """Check a deployment file's content as `millrace check` does.

    Raises:
        NotTried: it is refused; with the reason.
    """
    try:
        Deployment.check(content, source="deployment")
    except InvalidInput as refusal:
        raise NotTried(str(refusal)) from None


def _engine_environment(content: Any) -> dict[str, str]:
    arguments = arguments_of(content)["rollout_server"]
    return environment(RolloutServerConfig.model_validate(arguments))
