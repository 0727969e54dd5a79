"""Every private interface of vLLM that is patched or called, each in a file."""
