"""Imported after the user's graders: from then on they have no network."""

from millrace_tools.audit.inside.broken_network import break_network

break_network()
