"""Runs as one HTML file: no script, nothing from elsewhere."""
