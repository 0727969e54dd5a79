"""The HTTP server of a replica: vLLM's own routes and one of ours."""
