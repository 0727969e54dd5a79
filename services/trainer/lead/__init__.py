"""The lead process of a trainer: it serves requests and commands the ranks."""
