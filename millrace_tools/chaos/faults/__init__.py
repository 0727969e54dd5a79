"""One fault a file: what it does, and how it is undone. Standard library only."""
