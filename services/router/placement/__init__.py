"""Which replica gets a request, and when."""
