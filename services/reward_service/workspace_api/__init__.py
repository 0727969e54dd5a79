"""Workspaces over HTTP: routes, the replica that has each workspace, and grading."""
