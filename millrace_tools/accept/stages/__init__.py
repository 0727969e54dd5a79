"""The stages, one or a related few in a file."""
