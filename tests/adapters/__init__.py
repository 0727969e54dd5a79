"""Adapters against the real packages."""
