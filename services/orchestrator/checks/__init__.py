"""What a run file is checked for before the run starts."""
