"""Resources: those that a deployment asks for, and those of the nodes."""
