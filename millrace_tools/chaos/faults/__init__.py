"""Faults of one node, each with its undoing. Standard library only."""
