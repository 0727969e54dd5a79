"""Replicas and trainers that the bus knows."""
