"""Policy losses, KL and how they are aggregated."""
