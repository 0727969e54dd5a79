"""Held-out evaluations."""
