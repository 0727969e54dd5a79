"""Clients of a running deployment."""
