"""What keeps a broker running: its saved state, flushes, ports, registration, and refusals of writes."""
