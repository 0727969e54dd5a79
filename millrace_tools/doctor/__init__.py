"""`millrace doctor`: what a machine or cluster can do, with the fix for each fault."""
