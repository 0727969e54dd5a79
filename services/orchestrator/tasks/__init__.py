"""Tasks and prompts: where they come from and in which order."""
