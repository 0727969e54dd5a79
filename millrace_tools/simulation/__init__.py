"""The schedules in simulated time: what given replicas and a given trainer reach."""
