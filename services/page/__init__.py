"""The page: what a run did and does, from its run directory, in a browser."""
