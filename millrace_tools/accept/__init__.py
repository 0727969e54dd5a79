"""`millrace accept`: stages that prove a machine, and the report that they make."""
