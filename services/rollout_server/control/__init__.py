"""The replica as a member of the weight bus."""
