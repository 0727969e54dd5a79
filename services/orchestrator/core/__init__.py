"""Shared by all parts of a run: the book of sample groups, its events, the schedule."""
