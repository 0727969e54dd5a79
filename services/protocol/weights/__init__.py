"""Policy versions, the weight bus and replica control."""
