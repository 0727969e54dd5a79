"""Experiment trackers: what a run writes to `metrics.jsonl` shown where teams look."""
