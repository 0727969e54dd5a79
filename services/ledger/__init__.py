"""The run ledger: where each sample group is, in SQLite."""
