"""What is around environments: sandboxes, and failures that an audit brings about."""
