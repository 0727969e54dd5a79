"""Takes looks: asks the services over HTTP and the cluster over its feed."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx
from pydantic import ValidationError

from millrace_tools.client.api_key import key_headers
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.top.cluster_feed import ClusterFeed
from millrace_tools.top.metric_pages import MetricPages, Rates, Series, by_label, total
from millrace_tools.top.snapshot import Push, Replica, Rewards, Snapshot
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunStatus

_TIMEOUT_S = 2.0
_FIRST_WORD_S = 35.0
_PUSHES = 5
_IN_FLIGHT = "ray_millrace_router_in_flight"
_QUEUE = "ray_millrace_reward_queue"
_QUEUE_AGE = "ray_millrace_reward_queue_age_seconds"
_VERDICTS = "ray_millrace_reward_verdicts_total"
_CPU = "ray_millrace_reward_cpu_seconds_total"
_NODE_METRICS = (_IN_FLIGHT, _QUEUE, _VERDICTS, _CPU)
_KV_USAGE = "vllm:kv_cache_usage_perc"
_WAITING = "vllm:num_requests_waiting"


class Observer:
    """A context manager; every source that is away is named in the look, none ends it.

    Args:
        url: where the services answer.
        address: of the Ray cluster, None for what RAY_ADDRESS says or the one here.
    """

    def __init__(self, url: str, address: str | None) -> None:
        self._runs = RunsClient(url)
        self._url = self._runs.url
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, headers=key_headers())
        self._feed = ClusterFeed(address)
        self._pages = MetricPages()
        self._rates = Rates()

    def __enter__(self) -> Self:
        self._feed.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.__exit__()
        self._pages.close()
        self._http.close()
        self._runs.__exit__(None, None, None)

    def wait_for_cluster(self) -> None:
        """Until the cluster was asked once, or does not let us in."""
        self._feed.heard.wait(_FIRST_WORD_S)

    def look(self) -> Snapshot:
        """Ask everybody."""
        absent: dict[str, str] = {}
        runs, load = self._ask_runs(absent), self._ask_load(absent)
        word = self._feed.newest
        if word is None:
            absent["weight bus"] = self._feed.problem
            return Snapshot(at=time.time(), url=self._url, runs=runs, load=load, absent=absent)
        members = word["table"]["members"]
        nodes = self._pages.read(word["pages"], _NODE_METRICS)
        # A replica's own page is newer than Ray's, which is written every ten seconds.
        addresses = [f"{member['address']}/metrics" for member in members]
        engines = self._pages.read(addresses, (_KV_USAGE, _WAITING))
        return Snapshot(
            at=time.time(),
            url=self._url,
            runs=runs,
            load=load,
            newest_version=word["table"]["newest_version"],
            replicas=replicas(members, by_label(nodes, _IN_FLIGHT, "replica"), engines),
            pushes=pushes(word["versions"], time.time()),
            rewards=self._rewards(nodes),
            absent=absent,
        )

    def _ask_runs(self, absent: dict[str, str]) -> list[RunStatus]:
        try:
            return self._runs.runs()
        except (InvalidInput, NotReady) as error:
            absent["orchestrator"] = getattr(error, "fix", str(error))
            return []

    def _ask_load(self, absent: dict[str, str]) -> RouterLoad | None:
        try:
            answer = self._http.get(f"{self._url}/v1/load").raise_for_status()
            return RouterLoad.model_validate(answer.json())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            absent["router"] = str(error).split("\n")[0] or type(error).__name__
        except (ValueError, ValidationError):
            absent["router"] = f"{self._url}/v1/load is not the router's"
        return None

    def _rewards(self, nodes: list[Series]) -> Rewards | None:
        queue = total(nodes, _QUEUE)
        if queue is None:
            return None
        ages = [value for page in nodes for (name, _), value in page.items() if name == _QUEUE_AGE]
        verdicts = by_label(nodes, _VERDICTS, "verdict")
        spent = total(nodes, _CPU)
        rates = self._rates.of(verdicts | ({} if spent is None else {_CPU: spent}))
        busy = rates.pop(_CPU, None)
        return Rewards(
            queue=round(queue),
            queue_age_s=max(ages, default=0.0),
            slots_busy=busy,
            verdicts=rates,
        )


def replicas(
    members: Sequence[Mapping[str, Any]], in_flight: Mapping[str, float], engines: list[Series]
) -> list[Replica]:
    """The members, each with what its own page and the router say of it."""
    found = []
    for member, page in zip(members, engines, strict=True):
        routed, waiting = in_flight.get(member["replica_id"]), total([page], _WAITING)
        found.append(
            Replica(
                replica_id=member["replica_id"],
                state=member["state"],
                version=member["committed_version"],
                leased=member["leased"],
                in_flight=None if routed is None else round(routed),
                waiting=None if waiting is None else round(waiting),
                kv_usage=total([page], _KV_USAGE),
                error=member["last_error"],
            )
        )
    return found


def pushes(records: Sequence[Mapping[str, Any]], now: float) -> list[Push]:
    """The newest versions, newest last."""
    return [_push(record, now) for record in records[-_PUSHES:]]


def _push(record: Mapping[str, Any], now: float) -> Push:
    began = record["published_at"]
    done = [one["at"] for one in record["outcomes"] if one["error"] is None]
    errors = [f"{o['replica_id']}: {o['error']}" for o in record["outcomes"] if o["error"]]
    return Push(
        version=record["version"],
        train_step=record["train_step"],
        age_s=None if began is None else max(0.0, now - began),
        took_s=max(0.0, max(done) - began) if done and began is not None else None,
        commits=record["commits"],
        failures=record["failures"],
        error=errors[-1] if errors else "",
    )
