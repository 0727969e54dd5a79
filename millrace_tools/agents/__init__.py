"""Agents outside of the cluster, which play the tasks of a run."""
