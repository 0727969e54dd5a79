"""Faults on purpose in a running cluster, and what they cost."""
