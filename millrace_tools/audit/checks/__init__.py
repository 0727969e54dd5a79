"""What an audit looks at, one subject a file."""
