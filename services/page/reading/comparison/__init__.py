"""Runs side by side: the best first, what differs between their run files, their curves."""
