"""JSON, errors, event streams and API keys over HTTP, as every service reads and writes them."""
