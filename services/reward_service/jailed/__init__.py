"""What runs inside the jail: sent there as source, standard library only.

Nothing here may import from the rest of the service. The service may import from here, so
that both sides encode values alike.
"""
