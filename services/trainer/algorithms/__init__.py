"""The maths of an update: pure functions over per-token tensors, one algorithm a file."""
