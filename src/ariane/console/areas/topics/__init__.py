"""Topics: list, details and changes."""
