"""Trajectories and their rewards: engines, environments, the reward service."""
