"""The life of a run: start, stages, resume, stop."""
