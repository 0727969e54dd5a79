"""The page: a run in a browser, from its run directory."""
