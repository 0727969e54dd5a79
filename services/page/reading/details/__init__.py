"""Where a run learns, its held-out answers, log, alerts, load and configuration."""
