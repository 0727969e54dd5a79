"""The run file: tasks, schedule, algorithm, evaluation, trackers."""
