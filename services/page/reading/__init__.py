"""Files of runs to what the page shows."""
