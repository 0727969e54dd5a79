"""What runs in a workspace: programs, cells and orders about files, one after the other."""
