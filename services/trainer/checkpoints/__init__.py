"""Checkpoints and exports: files, manifests, digests."""
