"""What every part of a run shares: the book of sample groups, its events, the schedule."""
