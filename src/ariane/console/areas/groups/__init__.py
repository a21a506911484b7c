"""Consumer groups: list, progress, clients, offsets, settings, traffic, and forecasts of the lag."""
