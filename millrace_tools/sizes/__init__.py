"""Deployment and run files for given GPUs: their settings chosen by the sizing, and their text."""
