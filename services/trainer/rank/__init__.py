"""A rank process: one for each GPU."""
