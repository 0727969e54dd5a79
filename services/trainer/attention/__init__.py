"""Attention over trees of rows, and what watches its compiler."""
