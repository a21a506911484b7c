"""What keeps a broker running: its saved state, flushes, ports, registration, idle clients, and refusals of writes."""
