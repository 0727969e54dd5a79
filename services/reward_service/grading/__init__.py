"""Shared by all graders: tools, test sets, the verdict cache."""
