"""Who may use a service's HTTP address, and how much: keys, limits, a middleware."""
