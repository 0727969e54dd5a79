"""One version's way into the replicas."""
