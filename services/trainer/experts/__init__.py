"""Mixtures of experts: what their routers decide, and how their weights are stored."""
