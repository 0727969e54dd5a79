"""Trajectories to padded or packed tensors."""
