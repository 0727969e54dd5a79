"""The first process of a workspace's jail, its files and its kept interpreter."""
