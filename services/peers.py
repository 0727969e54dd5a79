"""The one place that finds other services: Serve handles and the weight bus actor.

Each peer implements the interface in `services.protocol` and turns every way in which a
service can be absent into `NotReady`, so that callers know one error.
"""

import asyncio
import contextlib
from typing import Any

import ray
from ray import serve
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.serve.config import ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from services.protocol.errors import NotReady, ReplicaLost
from services.protocol.reward.reward_service import Score, ScoreJob
from services.protocol.trainer import (
    CheckpointReport,
    LedgerFrontier,
    RunStart,
    TrainBatch,
    TrainerState,
    TrainReport,
)
from services.protocol.weights.replica_control import ControlOutcome
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import (
    BUS_ACTOR,
    NAMESPACE,
    MemberTable,
    Orders,
    ReplicaHello,
    Report,
    TrainerHello,
)
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest

_STATUS_S = 5.0
_RUNS_S, _RUNS_LOOK_S = 120.0, 0.1
_ABSENT = (RayActorError, RayServeException, GetTimeoutError, ConnectionError)


def http_host() -> str | None:
    """Where Serve's HTTP proxies listen on every node that has one, None for nowhere."""
    client = _get_global_client()
    assert client is not None, "it raises where Serve is not running"
    options = client.http_config
    return None if options.location == ProxyLocation.Disabled else options.host


def local_proxy() -> str:
    """Where Serve's HTTP proxy of this node answers processes of the node.

    Raises:
        NotReady: Serve has no HTTP proxies.
    """
    client = _get_global_client()
    assert client is not None, "it raises where Serve is not running"
    host = http_host()
    if host is None:
        raise NotReady("Serve has no HTTP proxy (proxy_location: Disabled)")
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if client.http_config.ssl_certfile else "http"
    return f"{scheme}://{f'[{here}]' if ':' in here else here}:{client.http_config.port}"


async def application_ends() -> bool:
    """Whether the application that this replica belongs to is being taken down as a whole.

    Without Serve it is; a controller that only does not answer now may be back in a moment.
    """
    name = serve.get_replica_context().app_name
    try:
        async with asyncio.timeout(_STATUS_S):
            status = await asyncio.to_thread(serve.status)
    except TimeoutError:
        return False
    except _ABSENT:
        return True
    found = status.applications.get(name)
    return found is None or found.status == ApplicationStatus.DELETING


async def replica_runs() -> bool:
    """Wait until Serve counts on this replica, so that it ends it gently.

    One that it has yet to see running is killed in the middle of what it does.

    Returns:
        False if Serve has not said so within two minutes, or does not answer.
    """
    own = serve.get_replica_context()
    with contextlib.suppress(TimeoutError, RayError, *_ABSENT):
        async with asyncio.timeout(_RUNS_S):
            while True:
                if await asyncio.to_thread(_runs, own.app_name, own.deployment, own.replica_tag):
                    return True
                await asyncio.sleep(_RUNS_LOOK_S)
    return False


def _runs(application: str, deployment: str, replica: str) -> bool:
    client = _get_global_client()
    assert client is not None, "it raises where Serve is not running"
    found = client.get_serve_details()["applications"].get(application, {})
    replicas = found.get("deployments", {}).get(deployment, {}).get("replicas", [])
    return any(one["replica_id"] == replica and one["state"] == "RUNNING" for one in replicas)


class _ServePeer:
    """A service reached through its Serve application's handle."""

    def __init__(self, application: str, handle: DeploymentHandle[Any] | None = None) -> None:
        self._application, self._handle = application, handle

    async def _call(self, method: str, *args: Any, timeout_s: float) -> Any:
        try:
            if self._handle is None:
                self._handle = serve.get_app_handle(self._application)
            response = self._handle.options(method_name=method).remote(*args)
            # Not wait_for: in Python 3.11 it loses a cancellation that arrives together
            # with the result, such as the error of a peer that has just died.
            async with asyncio.timeout(timeout_s):
                return await response
        except TimeoutError:
            raise NotReady(f"{self._application}.{method}: no answer in {timeout_s:g} s") from None
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError as error:
            raise ReplicaLost(f"{self._application} died during the call: {error}") from error
        except _ABSENT as error:
            raise NotReady(f"{self._application} is not up: {error}") from error


class TrainerPeer(_ServePeer):
    """The trainer, as the orchestrator sees it."""

    def __init__(self, *, timeout_s: float = 600.0) -> None:
        super().__init__("trainer")
        self._timeout_s = timeout_s

    async def start_run(self, start: RunStart) -> TrainerState:
        """See `services.protocol.trainer.Trainer`."""
        return await self._call("start_run", start, timeout_s=self._timeout_s)

    async def train(self, batch: TrainBatch) -> TrainReport:
        """See `services.protocol.trainer.Trainer`."""
        return await self._call("train", batch, timeout_s=self._timeout_s)

    async def save(
        self, run_id: str, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        """See `services.protocol.trainer.Trainer`."""
        return await self._call("save", run_id, frontier, wait, timeout_s=self._timeout_s)

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """See `services.protocol.trainer.Trainer`."""
        return await self._call("logprobs", sequences, timeout_s=self._timeout_s)

    async def state(self) -> TrainerState:
        """See `services.protocol.trainer.Trainer`."""
        return await self._call("state", timeout_s=10.0)


class RewardPeer(_ServePeer):
    """The reward service, as the orchestrator sees it."""

    def __init__(self, *, timeout_s: float = 300.0) -> None:
        super().__init__("reward_service")
        self._timeout_s = timeout_s

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """See `services.protocol.reward.reward_service.RewardService`."""
        return await self._call("score", jobs, timeout_s=self._timeout_s)


class SessionsPeer(_ServePeer):
    """The process with the recorded sessions, as each of several routers sees it."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        super().__init__("router's sessions", handle)

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a method of `services.router.trajectories.sessions.Sessions`.

        Raises:
            NotReady: no answer in `timeout_s`, or the process is not there.
        """
        return await self._call(method, *args, timeout_s=timeout_s)


class BusPeer:
    """The weight bus actor, as everybody sees it."""

    def __init__(self, *, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._actor: Any = None

    async def _call(self, method: str, *args: Any, extra_s: float = 0.0) -> Any:
        try:
            if self._actor is None:
                self._actor = ray.get_actor(BUS_ACTOR, namespace=NAMESPACE)
            reference = getattr(self._actor, method).remote(*args)
            async with asyncio.timeout(self._timeout_s + extra_s):
                return await reference
        except TimeoutError:
            raise NotReady(f"weight_bus.{method}: no answer in time") from None
        except RayTaskError as error:
            raise error.cause from None
        except (*_ABSENT, ValueError) as error:
            self._actor = None
            raise NotReady(f"weight_bus is not up: {error}") from error

    async def register_replica(self, hello: ReplicaHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("register_replica", hello)

    async def register_trainer(self, hello: TrainerHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("register_trainer", hello)

    async def leave(self, member_id: str) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("leave", member_id)

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._call("next_orders", member_id, acknowledged, wait_s, extra_s=wait_s)

    async def report(self, report: Report) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("report", report)

    async def publish(self, manifest: WeightManifest, group: str | None = None) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("publish", manifest, group)

    async def publish_canary(self, version: int, logprobs: CanaryLogprobs) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("publish_canary", version, logprobs)

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._call("watch", revision, wait_s, extra_s=wait_s)

    async def control(
        self, replica_id: str, action: str, level: int | None, timeout_s: float
    ) -> ControlOutcome:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        order = (replica_id, action, level, timeout_s)
        return await self._call("control", *order, extra_s=timeout_s)

    async def report_control(self, outcome: ControlOutcome) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("report_control", outcome)

    async def versions(self) -> tuple[VersionRecord, ...]:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._call("versions")

    async def bound_lag(self, max_lag: int | None) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("bound_lag", max_lag)

    async def want_replicas(self, replicas: int) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._call("want_replicas", replicas)
