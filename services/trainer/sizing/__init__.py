"""How much memory a rank needs, calculated before anything is loaded."""
