"""Runs from their files to their ends: start, stages, resume, stop."""
