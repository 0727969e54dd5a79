"""The router's own probes of replicas: does an idle one answer, how full is a busy one.

A replica that serves requests shows that it lives. That an idle or ejected one does not, a client's
request would be the first to find out.
"""

import asyncio
import contextlib
import time

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.weights.weight_bus import Member
from services.router.config import RouterConfig
from services.router.placement.health import Pressure
from services.router.placement.reservations import Reservations
from services.side_by_side import cancel

_LOG = Log("router")
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_NAMES = (_RUNNING, _WAITING, _KV_USAGE)


class Probes:
    """One probe of each leased replica at a time, each with a deadline."""

    def __init__(self, config: RouterConfig, reservations: Reservations) -> None:
        self._config, self._reservations = config, reservations
        self._open: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Probe replicas until cancelled."""
        # Of its own, so that probes never wait for a connection behind requests.
        timeout = aiohttp.ClientTimeout(total=self._config.probe_timeout_s)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                while True:
                    await asyncio.sleep(self._config.probe_s)
                    for member in self._reservations.membership.leased(None).values():
                        self._begin(session, member)
            finally:
                await cancel(*self._open.values())

    def _begin(self, session: aiohttp.ClientSession, member: Member) -> None:
        """Probe a replica, unless its last probe still waits."""
        replica = member.replica_id
        if replica in self._open:
            return
        probe = asyncio.create_task(self._guarded(session, member), name=f"probe {replica}")
        self._open[replica] = probe
        probe.add_done_callback(lambda _: self._open.pop(replica))

    async def _guarded(self, session: aiohttp.ClientSession, member: Member) -> None:
        try:
            await self.probe(session, member)
        except Exception:  # noqa: BLE001  one probe's outer edge; counted
            RouterMetrics.probes.inc(tags={"kind": "look", "result": "crashed"})
            _LOG.exception("probe_failed", replica=member.replica_id)

    async def probe(self, session: aiohttp.ClientSession, member: Member) -> None:
        """Probe one replica, in the way that its state asks for."""
        health = self._reservations.chooser.health(member.replica_id)
        if health.ejected or not self._reservations.chooser.load(member.replica_id):
            await self._check_health(session, member)
        else:
            await self._read_pressure(session, member)

    async def _check_health(self, session: aiohttp.ClientSession, member: Member) -> None:
        replica, result = member.replica_id, "ok"
        try:
            async with session.get(f"{member.address}/health") as response:
                if response.status >= 500:
                    result = f"status_{response.status}"
        except TimeoutError:
            result = "timeout"
        except (aiohttp.ClientError, OSError):
            result = "connection"
        RouterMetrics.probes.inc(tags={"kind": "health", "result": result})
        # What has happened since says more: a lease that ended, a request that runs there.
        busy = self._reservations.chooser.load(replica) > 0
        if busy or not self._reservations.membership.holds_lease(replica):
            return
        if result != "ok":
            self._reservations.failed(replica, by="probe")
        elif self._reservations.chooser.health(replica).reached(time.monotonic()):
            self._reservations.queue.advance()

    async def _read_pressure(self, session: aiohttp.ClientSession, member: Member) -> None:
        pressure = None
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError, ValueError):
            async with session.get(f"{member.address}/metrics") as response:
                pressure = read_pressure(await response.text())
        result = "unknown" if pressure is None else "ok"
        RouterMetrics.probes.inc(tags={"kind": "pressure", "result": result})
        if pressure is not None:
            chooser = self._reservations.chooser
            cap = chooser.health(member.replica_id).cap
            cap.observe(pressure, chooser.load(member.replica_id))
            self._reservations.queue.advance()


def read_pressure(page: str) -> Pressure | None:
    """How full an engine says that it is; None when its metrics do not.

    Raises:
        ValueError: a line of vLLM's is not what Prometheus defines.
    """
    lines = [line for line in page.splitlines() if line.startswith(_NAMES)]
    seen: dict[str, list[float]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            seen.setdefault(sample.name, []).append(sample.value)
    if any(name not in seen for name in _NAMES):
        return None
    # Of several engines behind one address the fullest decides.
    return Pressure(
        running=sum(seen[_RUNNING]), waiting=sum(seen[_WAITING]), kv_usage=max(seen[_KV_USAGE])
    )
