"""The policy's model: sharding, attention, adapters, log-probabilities."""
