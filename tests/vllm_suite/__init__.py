"""vLLM's own tests of its server, run at vLLM and at a router before it."""
