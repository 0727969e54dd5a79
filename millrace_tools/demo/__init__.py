"""`millrace demo` and `millrace init`."""
