"""Millrace: one folder a service; see ARCHITECTURE.md."""
