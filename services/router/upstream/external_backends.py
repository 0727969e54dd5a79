"""OpenAI-compatible servers outside the cluster, as replicas without a journal.

They have a member table of their own, from looking at them instead of from the weight bus.
With it everything that chooses, counts, ejects and retries works for them unchanged.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from services.http.api_key import key_header, key_in
from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.router.config import BackendConfig, RouterConfig
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.placement.reservation import Reservation
from services.router.placement.reservations import Reservations
from services.router.upstream.replicas import Replicas
from services.router.upstream.upstream import Upstream

_LOG = Log("router")


class ExternalBackends:
    """The table of external backends; each is asked for its models every `probe_s`.

    A backend counts as up until it has been asked, so that the first requests need not wait.
    """

    def __init__(self, config: RouterConfig, keys: Mapping[str, str | None]) -> None:
        self._config, self._keys, self._backends = config, keys, _names(config)
        self._up = dict.fromkeys(self._backends, True)
        self._revision = 0
        self._asked_at = time.monotonic()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """The table, after news or `wait_s`; see `TableSource`."""
        if revision >= self._revision:
            due = self._asked_at + self._config.probe_s - time.monotonic()
            await asyncio.sleep(max(0.0, min(due, wait_s)))
            if due <= wait_s:
                await self._ask_all()
                self._asked_at = time.monotonic()
        return MemberTable(
            bus_id="external",
            revision=self._revision,
            newest_version=None,
            # They hold no lease; it ends only when the watching stands still.
            lease_s=4 * (self._config.probe_s + self._config.probe_timeout_s),
            members=tuple(
                Member(
                    replica_id=name,
                    address=backend.url,
                    state=ReplicaState.LIVE if self._up[name] else ReplicaState.SUSPECT,
                    committed_version=None,
                    leased=self._up[name],
                    model=backend.model,
                    max_model_len=backend.max_model_len or 0,
                    pid=0,
                )
                for name, backend in self._backends.items()
            ),
            trainer_ready=False,
            pushes=0,
        )

    async def _ask_all(self) -> None:
        async with aiohttp.ClientSession() as http:
            asked = (self._problem(http, *backend) for backend in self._backends.items())
            problems = await asyncio.gather(*asked)
        for name, problem in zip(self._backends, problems, strict=True):
            if self._up[name] is not (problem is None):
                self._up[name] = problem is None
                self._revision += 1
                _LOG.warning("backend_changed", replica=name, up=problem is None, reason=problem)
            RouterMetrics.backend_up.set(float(problem is None), {"backend": name})

    async def _problem(
        self, http: aiohttp.ClientSession, name: str, backend: BackendConfig
    ) -> str | None:
        try:
            async with asyncio.timeout(self._config.probe_timeout_s):
                url, headers = f"{backend.url}/v1/models", key_header(self._keys.get(name))
                async with http.get(url, headers=headers, allow_redirects=False) as response:
                    if response.status != 200:
                        return f"{url} answers {response.status}"
                    models = await response.json(content_type=None)
            served = [model["id"] for model in models["data"]]
        except TimeoutError:
            return f"no answer in {self._config.probe_timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            return repr(error)
        return None if backend.model in served else f"it serves {served[:20]}"


class _ExternalUpstream(Upstream):
    """Shows each backend the key that it wants."""

    def __init__(self, config: RouterConfig, keys: Mapping[str, str | None]) -> None:
        super().__init__(config)
        self._keys = keys

    def _headers(self, reservation: Reservation) -> dict[str, str]:
        return super()._headers(reservation) | key_header(self._keys.get(reservation.replica_id))

    async def _send(
        self, reservation: Reservation, path: str, body: dict[str, Any] | bytes | None
    ) -> aiohttp.ClientResponse:
        try:
            return await super()._send(reservation, path, body)
        except RequestFailed as refusal:
            if refusal.status not in (401, 403):
                raise
            # The key is the router's, so this is nothing that its client can mend.
            raise UpstreamBroken("status", f"{refusal.status}: it refuses our key") from None


def external_replicas(config: RouterConfig) -> Replicas:
    """What requests need to reach external backends.

    Raises:
        InvalidInput: an environment variable that shall hold a key is not set.
    """
    keys = {
        name: key_in(backend.api_key_env, field="router.backends.api_key_env")
        for name, backend in _names(config).items()
    }
    return Replicas(
        config=config,
        reservations=Reservations(config, ExternalBackends(config, keys), measured=False),
        upstream=_ExternalUpstream(config, keys),
        probed=False,
    )


def _names(config: RouterConfig) -> dict[str, BackendConfig]:
    """Backends by the name that headers and metrics give them."""
    return {
        f"external-{number}-{urlsplit(backend.url).hostname}": backend
        for number, backend in enumerate(config.backends)
    }
