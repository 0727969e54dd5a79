"""New weights: received, staged, checked, loaded."""
