"""Workspaces from outside: the tools that agents use them with, and their HTTP client."""
