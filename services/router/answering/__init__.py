"""An answer from its first token to its last, on as many replicas as it takes."""
