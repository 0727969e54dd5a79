"""Whole clusters under live changes, faults and cut networks: run by `make test-operations`."""
