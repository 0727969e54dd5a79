"""Every kind of grader, one file a noun; see `registry`."""
