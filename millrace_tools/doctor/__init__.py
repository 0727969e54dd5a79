"""`millrace doctor`: what this machine or cluster can do, with the fix for each fault."""
