"""Deployment files: checks, wiring, `serve run`."""
