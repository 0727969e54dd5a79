"""The process of one node that receives each version once, for all engines of the node."""
