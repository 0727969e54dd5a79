"""Workers, their slots, and the programs that are compiled and run in them."""
