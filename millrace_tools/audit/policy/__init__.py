"""Servers on loopback that answer in the place of a policy."""
