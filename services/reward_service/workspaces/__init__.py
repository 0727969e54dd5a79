"""Workspaces: jails whose files and interpreter stay between the calls of a session."""
