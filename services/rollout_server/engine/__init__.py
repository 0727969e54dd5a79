"""The engine of a replica: its arguments, environment and processes."""
