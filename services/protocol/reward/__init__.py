"""Graders, tests and verdicts."""
