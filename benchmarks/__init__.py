"""Measurements beside a peer or a limit; run one with `python -m benchmarks.SUBJECT`."""
