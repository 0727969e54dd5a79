"""Numbered orders."""

import pytest

from services.protocol.weights.weight_bus import CommitWeights
from services.weight_bus.mailbox import CAPACITY, Mailbox, MailboxFull


def test_orders_keep_their_order_and_leave_when_acknowledged() -> None:
    mailbox = Mailbox()
    orders = [CommitWeights(version=version) for version in range(3)]
    for order in orders:
        mailbox.post(order)
    assert mailbox.waiting == tuple(orders)
    mailbox.acknowledge(2)
    assert mailbox.waiting == (orders[2],)
    assert mailbox.last == 3


def test_acknowledging_what_was_never_posted_loses_nothing_that_comes_later() -> None:
    mailbox = Mailbox()
    mailbox.acknowledge(5)
    mailbox.post(CommitWeights(version=0))
    assert len(mailbox.waiting) == 1


def test_a_member_that_takes_nothing_cannot_fill_the_memory() -> None:
    mailbox = Mailbox()
    for _ in range(CAPACITY):
        mailbox.post(CommitWeights(version=0))
    with pytest.raises(MailboxFull):
        mailbox.post(CommitWeights(version=0))
