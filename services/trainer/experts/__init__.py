"""Mixtures of experts: what their routers decide."""
