"""Fixtures of several tests here."""

from tests.transport.sender import sender

__all__ = ["sender"]
