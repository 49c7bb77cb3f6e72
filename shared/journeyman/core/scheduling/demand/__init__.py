"""What pods ask for: read from their specs, made comparable, collapsed into classes with ladders of preferences."""
