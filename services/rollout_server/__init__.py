"""vLLM engines that serve the policy and take new versions of it while they generate."""
