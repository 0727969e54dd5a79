"""`millrace top`: the live view of runs, replicas, rewards and pushes in a terminal."""
