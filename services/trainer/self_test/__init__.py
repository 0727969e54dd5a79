"""Programs that prove a machine for the trainer; each prints one line of JSON."""
