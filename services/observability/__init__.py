"""Every metric declared once, and structured logs."""
