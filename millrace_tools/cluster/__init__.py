"""A private Ray cluster, and commands about members and versions."""
