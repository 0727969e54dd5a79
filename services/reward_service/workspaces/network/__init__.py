"""The network of workspaces: a proxy to the addresses that the operator allows."""
