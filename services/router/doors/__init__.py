"""The APIs that the router speaks, each turned into the one journal and back."""
