"""Sessions: calls that are joined into token-exact trajectories."""
