"""`millrace grade`: an answer against tests or against a task, without a cluster."""
