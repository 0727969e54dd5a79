"""Checks of a run file before the run starts."""
