"""The OpenAI-compatible edge: chooses replicas and keeps the token journal."""
