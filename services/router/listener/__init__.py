"""The public port: its listening socket, and the connections that it accepts."""
