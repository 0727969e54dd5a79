"""The custom resource that keeps services on their nodes."""

NODE_RESOURCE_SHARE = 0.001
"""Amount of a `node_resource` that each replica or rank asks for. Nodes have 1 of it, so that it
says where something may be and never how much of it."""
