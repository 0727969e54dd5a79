"""Finding the interface that Gloo should use."""

from services.trainer.rank.process_group import interface_of


def test_the_loopback_address_belongs_to_the_loopback_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_of_no_interface_has_none() -> None:
    assert interface_of("198.51.100.7") is None
