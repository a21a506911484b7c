"""Consumer groups: settings, clients, lag, rates and offsets."""
