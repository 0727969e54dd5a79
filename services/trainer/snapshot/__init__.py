"""Weights on their way out: snapshots of the parameters for the weight bus."""
