"""Versions into live models: whole ones, quantised ones and adapters."""
