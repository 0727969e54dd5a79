"""What a deployment asks for beside what the machines have."""
