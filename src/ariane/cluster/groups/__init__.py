"""Consumer groups: settings, clients, lag and when it drains, rates and offsets."""
