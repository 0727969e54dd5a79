"""Retries: which errors, which pauses, and until when."""

from itertools import islice

import pytest

from services.protocol.errors import NotReady
from services.retry import doubling, retrying


class Peer:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, error: type[Exception] = NotReady) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"call {self.calls}")
        return "answer"


async def test_a_call_is_retried_until_it_succeeds_and_the_last_pause_is_repeated() -> None:
    peer, seen = Peer(3), list[tuple[str, float]]()
    answer = await retrying(
        peer, pauses=[0.0, 0.001], failed=lambda error, pause_s: seen.append((str(error), pause_s))
    )
    assert answer == "answer"
    assert seen == [("call 1", 0.0), ("call 2", 0.001), ("call 3", 0.001)]


async def test_the_last_error_is_raised_when_no_further_call_would_begin_in_time() -> None:
    peer, seen = Peer(100), list[str]()
    with pytest.raises(NotReady, match="call 1"):
        await retrying(
            peer, pauses=[1.0], timeout_s=0.5, failed=lambda error, _: seen.append(str(error))
        )
    assert (peer.calls, seen) == (1, ["call 1"])


async def test_other_errors_are_raised_at_once() -> None:
    peer = Peer(1, ValueError)
    with pytest.raises(ValueError, match="call 1"):
        await retrying(peer, pauses=[0.0])
    assert peer.calls == 1


async def test_what_failed_raises_ends_the_retries() -> None:
    peer = Peer(100)

    def failed(error: Exception, _: float) -> None:
        if peer.calls == 2:
            raise error

    with pytest.raises(NotReady, match="call 2"):
        await retrying(peer, pauses=[0.0], failed=failed)


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(doubling(0.1, 0.35), 4)) == pytest.approx([0.1, 0.2, 0.35, 0.35])
