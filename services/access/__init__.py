"""Access to a service's HTTP address: API keys, their limits, and a middleware."""
