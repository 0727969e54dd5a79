"""A run: prompts, sample groups, their ledger, staleness, and when to train."""
