"""The sizing of a trainer rank beside what a real train step takes, counted under fake tensors."""
