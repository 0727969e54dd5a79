"""The loop of a run: admit, sample, score, train, save."""
