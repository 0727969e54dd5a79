"""Policy losses, KL, corrections and how they are aggregated."""
