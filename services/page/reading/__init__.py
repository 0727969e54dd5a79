"""Reads the files of runs for the page."""
