"""Other people's clients, unchanged, against the front door of a cluster."""
