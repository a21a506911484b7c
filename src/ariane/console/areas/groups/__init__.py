"""Consumer groups: list, progress, clients, offsets, settings, traffic and forecast."""
