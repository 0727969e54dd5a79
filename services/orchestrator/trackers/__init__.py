"""Experiment trackers: they get what a run writes to `metrics.jsonl`."""
