"""Whole clusters that are watched, cut apart and broken: run by `make test-operations`."""
