"""Environments that others have made: one thin adapter for each foreign package.

A run file's environment imports them; no service does.
"""
