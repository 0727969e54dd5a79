"""`millrace audit`: what an environment pays for, before anyone rents a GPU for it."""
