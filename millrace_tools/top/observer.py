"""Takes snapshots: asks the services over HTTP, and the cluster over its feed."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Self

import httpx

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.client.services_url import http_client
from millrace_tools.top.cluster_feed import ClusterFeed
from millrace_tools.top.metric_pages import MetricPages, Rates, Series, by_label, total
from millrace_tools.top.snapshot import Push, Replica, Rewards, Snapshot
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.router import RouterLoad
from services.protocol.run.orchestrator import RunStatus

_TIMEOUT_S = 2.0
_FIRST_ANSWER_S = 35.0
_LOOKS, _LOOK_S = 3, 1.0
_PUSHES = 5
_LOAD = "/v1/load"
_IN_FLIGHT = "ray_millrace_router_in_flight"
_QUEUE = "ray_millrace_reward_queue"
_QUEUE_AGE = "ray_millrace_reward_queue_age_seconds"
_VERDICTS = "ray_millrace_reward_verdicts_total"
_CPU = "ray_millrace_reward_cpu_seconds_total"
_NODE_METRICS = (_IN_FLIGHT, _QUEUE, _VERDICTS, _CPU)
_KV_USAGE = "vllm:kv_cache_usage_perc"
_WAITING = "vllm:num_requests_waiting"


class Observer:
    """Takes snapshots; a context manager. A source that does not answer is named in the snapshot.

    Args:
        url: where the services answer.
        address: of the Ray cluster; None: RAY_ADDRESS, or the cluster on this machine.
    """

    def __init__(self, url: str, address: str | None) -> None:
        self._closing = ExitStack()
        self._runs = self._closing.enter_context(RunsClient(url))
        self._http = self._closing.enter_context(http_client(url, _TIMEOUT_S))
        self._pages = self._closing.enter_context(closing(MetricPages()))
        self._feed = ClusterFeed(address)
        self._rates = Rates()

    def __enter__(self) -> Self:
        self._closing.enter_context(self._feed)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def wait_for_cluster(self) -> None:
        """Return when the cluster has answered, or has refused this process."""
        self._feed.heard.wait(_FIRST_ANSWER_S)

    def steady_look(self) -> Snapshot:
        """One look to judge by: a source is absent that did not answer three times in a row.

        A busy service may be late once. The screen looks again a second later; one look does not.
        """
        look = self.look()
        for _ in range(_LOOKS - 1):
            if not look.absent:
                break
            time.sleep(_LOOK_S)
            look = self.look()
        return look

    def look(self) -> Snapshot:
        """Ask every source."""
        absent: dict[str, str] = {}
        seen = Snapshot(
            at=time.time(),
            url=self._runs.url,
            runs=self._ask_runs(absent),
            load=self._ask_load(absent),
            absent=absent,
        )
        state = self._feed.newest
        if state is None:
            absent["weight bus"] = self._feed.problem
            return seen
        members = state["table"]["members"]
        nodes = self._pages.read(state["pages"], _NODE_METRICS)
        # A replica's own page is newer than Ray's, which is written every ten seconds.
        addresses = [f"{member['address']}/metrics" for member in members]
        engines = self._pages.read(addresses, (_KV_USAGE, _WAITING))
        return replace(
            seen,
            newest_version=state["table"]["newest_version"],
            replicas=replicas(members, by_label(nodes, _IN_FLIGHT, "replica"), engines),
            pushes=pushes(state["versions"], time.time()),
            rewards=self._rewards(nodes),
        )

    def _ask_runs(self, absent: dict[str, str]) -> list[RunStatus]:
        try:
            return self._runs.runs()
        except (InvalidInput, NotReady) as error:
            absent["orchestrator"] = getattr(error, "fix", str(error))
            return []

    def _ask_load(self, absent: dict[str, str]) -> RouterLoad | None:
        try:
            return RouterLoad.model_validate(self._http.get(_LOAD).raise_for_status().json())
        except httpx.HTTPError as error:
            absent["router"] = str(error).split("\n")[0] or type(error).__name__
        except ValueError:
            absent["router"] = f"{self._runs.url}{_LOAD} is not the router's"
        return None

    def _rewards(self, nodes: list[Series]) -> Rewards | None:
        queue = total(nodes, _QUEUE)
        if queue is None:
            return None
        ages = [value for page in nodes for (name, _), value in page.items() if name == _QUEUE_AGE]
        spent = total(nodes, _CPU)
        verdicts = by_label(nodes, _VERDICTS, "verdict")
        rates = self._rates.of(verdicts | ({} if spent is None else {_CPU: spent}))
        return Rewards(
            queue=round(queue),
            queue_age_s=max(ages, default=0.0),
            slots_busy=rates.pop(_CPU, None),
            verdicts=rates,
        )


def replicas(
    members: Sequence[Mapping[str, Any]], in_flight: Mapping[str, float], engines: list[Series]
) -> list[Replica]:
    """The members of the bus, with metrics of the router and of their own pages."""
    return [
        Replica(
            replica_id=member["replica_id"],
            state=member["state"],
            version=member["committed_version"],
            leased=member["leased"],
            in_flight=_whole(in_flight.get(member["replica_id"])),
            waiting=_whole(total([page], _WAITING)),
            kv_usage=total([page], _KV_USAGE),
            error=member["last_error"],
        )
        for member, page in zip(members, engines, strict=True)
    ]


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


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
