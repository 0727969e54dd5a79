"""Learning curves in one process, where staleness is exact and a result can be repeated."""
