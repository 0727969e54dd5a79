"""What waits in host memory: moments, shards, inputs of layers."""
