"""Finds other services: Serve handles and the weight bus actor.

A peer has the methods of its interface in `services.protocol`. It raises `NotReady` for every
way in which a service can be absent, so that callers handle one error.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.serve.config import ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from services.protocol.errors import NotReady, ReplicaLost
from services.protocol.reward.reward_service import RewardService
from services.protocol.trainer import RankProgress, Trainer, TrainerState
from services.protocol.weights.weight_bus import BUS_ACTOR, NAMESPACE, WeightBus

_STATUS_S, _SHORT_ANSWER_S = 5.0, 10.0
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


async def replica_states(deployment: str | None = None) -> dict[str, str] | None:
    """States of the replicas of this deployment, or of another one of this application, by id;
    None where Serve does not answer."""
    own = serve.get_replica_context()
    try:
        async with asyncio.timeout(_STATUS_S):
            name = deployment or own.deployment
            return await asyncio.to_thread(_states, own.app_name, name)
    except (TimeoutError, RayError, *_ABSENT):
        return None


def _runs(application: str, deployment: str, replica: str) -> bool:
    return _states(application, deployment).get(replica) == "RUNNING"


def _states(application: str, deployment: str) -> dict[str, str]:
    client = _get_global_client()
    assert client is not None, "it raises where Serve is not running"
    found = client.get_serve_details()["applications"].get(application, {})
    replicas = found.get("deployments", {}).get(deployment, {}).get("replicas", [])
    return {one["replica_id"]: one["state"] for one in replicas}


class RemoteService:
    """Calls methods of a Serve application or an actor by name.

    Args:
        name: for errors.
        find: returns the handle. It is called again after the remote process died.
    """

    def __init__(self, name: str, find: Callable[[], Any]) -> None:
        self._name, self._find = name, find
        self._handle: Any = None

    async def call(self, method: str, *args: Any, timeout_s: float | None) -> Any:
        """Call a method and return its result.

        Raises:
            NotReady: no answer in `timeout_s`, None for no limit, or the service is not up.
            ReplicaLost: the process died during the call.
            Exception: whatever the method raised.
        """
        try:
            if self._handle is None:
                self._handle = self._find()
            # Not wait_for: in Python 3.11 it loses a cancellation that arrives together
            # with the result, such as the error of a peer that has just died.
            async with asyncio.timeout(timeout_s):
                return await getattr(self._handle, method).remote(*args)
        except TimeoutError as error:
            # Without a limit of ours it is one of Ray's.
            why = str(error) if timeout_s is None else f"no answer in {timeout_s:g} s"
            raise NotReady(f"{self._name}.{method}: {why}") from None
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError as error:
            self._handle = None
            raise ReplicaLost(f"{self._name} died during the call: {error}") from error
        except _ABSENT as error:
            raise NotReady(f"{self._name} is not up: {error}") from error


class _Forwarder:
    """Forwards every method of an interface to a service.

    A method with a `wait_s` parameter may take that much longer than `timeout_s`.

    Args:
        interface: a Protocol of coroutine methods.
        service: implements it in another process.
        timeout_s: deadline of a call, None where callers watch the service themselves.
        timeouts_s: deadlines of methods that differ, by name.
    """

    def __init__(
        self, interface: type, service: RemoteService, timeout_s: float | None, **timeouts_s: float
    ) -> None:
        self._service = service
        for name, method in inspect.getmembers(interface, inspect.iscoroutinefunction):
            arguments = inspect.signature(partial(method, self))
            deadline_s = timeouts_s.get(name, timeout_s)
            setattr(self, name, partial(self._forward, name, arguments, deadline_s))

    async def _forward(
        self,
        method: str,
        arguments: inspect.Signature,
        timeout_s: float | None,
        *args: Any,
        **named: Any,
    ) -> Any:
        bound = arguments.bind(*args, **named)
        if timeout_s is not None:
            timeout_s += bound.arguments.get("wait_s", 0.0)
        bound.apply_defaults()
        return await self._service.call(method, *bound.args, timeout_s=timeout_s)


def trainer_peer() -> Trainer:
    """The trainer's Serve application. Its long calls have no deadline, since a large model may
    take any time: callers watch its `state`, which also shows a replica whose ranks start."""
    service = RemoteService("trainer", partial(serve.get_app_handle, "trainer"))
    short = dict.fromkeys(("state", "profile"), _SHORT_ANSWER_S)
    peer = cast(Trainer, _Forwarder(Trainer, service, None, **short))
    tell, starts = peer.state, set[str]()

    async def state() -> TrainerState:
        try:
            told = await tell()
        except NotReady:
            starting = await _replicas_in("STARTING", "trainer", "trainer")
            if not starting:
                raise
            starts.update(starting)
            return _starting_trainer(failed_starts=len(starts) - 1)
        starts.clear()
        return told

    peer.state = state  # type: ignore[method-assign]
    return peer


def _starting_trainer(*, failed_starts: int) -> TrainerState:
    return TrainerState(
        ready=False,
        run_id=None,
        step=0,
        policy_version=None,
        world_size=0,
        row_groups=0,
        parameters=0,
        progress=RankProgress(phase="starting"),
        failed_starts=failed_starts,
    )


async def _replicas_in(state: str, application: str, deployment: str) -> set[str]:
    """Ids of replicas that Serve has in a state; none where it does not answer."""
    try:
        async with asyncio.timeout(_STATUS_S):
            states = await asyncio.to_thread(_states, application, deployment)
    except (TimeoutError, RayError, *_ABSENT):
        return set()
    return {replica for replica, its_state in states.items() if its_state == state}


def reward_peer(*, timeout_s: float = 1000.0) -> RewardService:
    """The reward service's Serve application."""
    service = RemoteService("reward_service", partial(serve.get_app_handle, "reward_service"))
    short = {"sandboxes": _SHORT_ANSWER_S}
    peer = cast(RewardService, _Forwarder(RewardService, service, timeout_s, **short))
    of_one = peer.sandboxes

    async def sandboxes() -> int:
        each = await of_one()
        replicas = await _replicas_in("RUNNING", "reward_service", "reward_service")
        if not replicas:
            raise NotReady("Serve does not say which replicas of the reward service run")
        return each * len(replicas)

    peer.sandboxes = sandboxes  # type: ignore[method-assign]
    return peer


def sessions_peer(handle: DeploymentHandle[Any]) -> RemoteService:
    """The process with the recorded sessions, where no router has them itself."""
    return RemoteService("router's sessions", lambda: handle)


def bus_peer(*, timeout_s: float = 10.0) -> WeightBus:
    """The weight bus actor."""
    service = RemoteService("weight_bus", _find_bus)
    return cast(WeightBus, _Forwarder(WeightBus, service, timeout_s))


def _find_bus() -> Any:
    try:
        return ray.get_actor(BUS_ACTOR, namespace=NAMESPACE)
    except ValueError as error:
        raise NotReady(f"weight_bus is not up: {error}") from error
