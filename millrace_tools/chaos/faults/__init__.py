"""Faults of one node, and how each is undone. Standard library only."""
