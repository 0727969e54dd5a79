"""The jail of a workspace: its start, its processes and its folder, seen from the service."""
