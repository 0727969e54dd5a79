"""Importance corrections of tokens, and masks of whole answers."""
