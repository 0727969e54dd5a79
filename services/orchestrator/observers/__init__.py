"""Records of a run, made from the book's events: metrics, traces, timeline, files."""
