"""The `millrace` command: runs, their progress, deployment files and the demo."""
