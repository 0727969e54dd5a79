"""Programs against tests: from output and asserts to a verdict."""
