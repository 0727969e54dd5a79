"""The weight bus: who is alive, who serves which version, and how versions get there."""
