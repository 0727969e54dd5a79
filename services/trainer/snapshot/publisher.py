"""Policy versions: numbers them, publishes them on the weight bus, and proves them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.observability.log import Log
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import MemberTable, WeightBus
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest
from services.retry import retrying

RETRY_S = 0.2
WATCH_S = 10.0

DELIVERY_S = 5.0
"""Longest wait for a version's delivery before it is scored."""

T = TypeVar("T")
_log = Log("trainer")


class Publisher:
    """Numbers versions so that they never go back, and publishes each exactly once.

    Every call is repeated while the bus does not answer, up to `timeout_s`, and then raises
    `NotReady`.

    Attributes:
        version: version last published, None before the first.
    """

    def __init__(self, bus: WeightBus, timeout_s: float) -> None:
        self.version: int | None = None
        self._bus, self._timeout_s = bus, timeout_s
        self._group = ""
        self._held: WeightManifest | None = None
        self._canary: CanaryLogprobs | None = None  # of the held version

    def follow(self, group: str) -> None:
        """New ranks have started; they cannot send earlier versions.

        The bus refuses a version of a group that another group has replaced.
        """
        self._group, self._held, self._canary = group, None, None

    @property
    def unproved(self) -> WeightManifest | None:
        """The version last published, while its canary must still be scored."""
        held = self._held
        return held if held is not None and held.canary and self._canary is None else None

    @property
    def holds_snapshots(self) -> bool:
        """The ranks can send the version last published."""
        return self._held is not None

    async def next_version(self) -> int:
        """Above everything ever published, by this trainer or one before it; first 0."""
        newest = (await self.members()).newest_version
        return max(-1 if v is None else v for v in (self.version, newest)) + 1

    async def is_published(self, manifest: WeightManifest) -> bool:
        """Whether the newest version has these very bytes and the ranks can still send it."""
        if self._held is None or self._held.digests != manifest.digests:
            return False
        return (await self.members()).newest_version == self.version

    async def published_model(self) -> str | None:
        """The checkpoint from which training to the newest version began.

        None: there is no version. Empty: the bus does not know, since it was restarted.
        """
        newest = (await self.members()).newest_version
        if newest is None:
            return None
        record = await self._record(newest)
        return record.model if record is not None else ""

    async def publish(self, manifest: WeightManifest) -> None:
        """Publish once, however often the call has to be repeated.

        Raises:
            NotReady: the bus restarted, and since this version was numbered a member has told it
                of a higher one, or of other bytes of this number; a version with a new number
                can be published.
            InvalidInput: the bus refuses these weights, or another trainer has replaced these
                ranks.
        """
        try:
            await self._repeat(lambda: self._bus.publish(manifest, self._group))
        except InvalidInput as refused:
            newest = (await self.members()).newest_version
            if newest is None or newest < manifest.version:
                raise
            # Else a first attempt whose answer was lost: the bus has this very version.
            if newest > manifest.version or await self._is_other(manifest):
                raise NotReady(
                    f"version {manifest.version} cannot be published: {refused}"
                ) from None
        self._held, self._canary, self.version = manifest, None, manifest.version
        _log.info("published", version=manifest.version, step=manifest.train_step)

    async def publish_canary(self, logprobs: CanaryLogprobs) -> None:
        """Publish the scores of the canary under the version last published."""
        assert self._held is not None, "unproved"
        self._canary, version = logprobs, self._held.version
        await self._repeat(lambda: self._bus.publish_canary(version, logprobs))

    async def delivered(self, version: int, *, timeout_s: float) -> bool:
        """Wait until every leased replica serves the version or a newer one."""
        revision, deadline = -1, time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            table = await self._bus.watch(revision, left)
            held = [member.committed_version for member in table.leased]
            if all(one is not None and one >= version for one in held):
                return True
            revision = table.revision
        return False

    async def keep_published(self) -> None:
        """Publish the newest version again to each bus that has restarted, until cancelled.

        Without it, no replica that joins would get the newest version before the next one is
        published.
        """
        revision, known = -1, ""
        while True:
            try:
                table = await self._bus.watch(revision, WATCH_S)
                if table.bus_id != known and self._held is not None:
                    await self._publish_again(self._held)
            except NotReady:
                revision = -1
                await asyncio.sleep(RETRY_S)
                continue
            revision, known = table.revision, table.bus_id

    async def _record(self, version: int) -> VersionRecord | None:
        records = await self._repeat(self._bus.versions)
        return next((one for one in records if one.version == version), None)

    async def _is_other(self, manifest: WeightManifest) -> bool:
        """Whether the bus knows other bytes under the number of a version."""
        record = await self._record(manifest.version)
        return record is not None and record.digest not in ("", manifest.digest)

    async def _publish_again(self, held: WeightManifest) -> None:
        try:
            await self._bus.publish(held, self._group)
        except InvalidInput as has_it:
            _log.info("bus_needs_no_manifest", why=str(has_it))
            # It may have the manifest from a replica's copy; the canary only the trainer knows.
            if (await self._bus.watch(-1, 0.0)).newest_version != held.version:
                return
        if self._canary is not None:
            await self._bus.publish_canary(held.version, self._canary)

    async def members(self) -> MemberTable:
        """The bus's table as it is now."""
        return await self._repeat(lambda: self._bus.watch(-1, 0.0))

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retrying(call, pauses=[RETRY_S], timeout_s=self._timeout_s)


class CanaryScorer:
    """Scores each published version once, before the weights change again.

    The scores are a forward pass, for which the ranks gather the whole model. So nothing
    waits for them: a version is published first, and scored when it has been delivered or
    when the next train step is about to begin, whichever comes first.

    Args:
        score: the ranks' logprobs of some sequences; called only while no other operation
            is under way.
    """

    def __init__(
        self,
        publisher: Publisher,
        score: Callable[[list[list[int]]], Awaitable[list[list[float]]]],
    ) -> None:
        self._publisher, self._score = publisher, score

    async def score_when_delivered(self, version: int, turn: asyncio.Lock) -> None:
        """Wait for the delivery, then, in turn with other operations, score.

        A version that could not be scored stays unproved, which the bus counts. New ranks publish
        and score again.
        """
        try:
            await self._publisher.delivered(version, timeout_s=DELIVERY_S)
            async with turn:
                await self.score()
        except (NotReady, RuntimeError) as error:
            _log.warning("canary_not_scored", version=version, why=str(error))

    async def score(self) -> None:
        """Score the newest version, unless that was done, and publish the scores.

        Raises:
            NotReady: the ranks or the bus are gone.
        """
        manifest = self._publisher.unproved
        if manifest is None:
            return
        scored = await self._score([list(one) for one in manifest.canary])
        await self._publisher.publish_canary(tuple(tuple(values) for values in scored))
