"""What clients see: requests, answers, errors and lists over HTTP."""
