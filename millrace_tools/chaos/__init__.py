"""Fault injection into a running cluster, and the report of its losses."""
