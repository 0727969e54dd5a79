"""How several routers keep their placement in step."""
