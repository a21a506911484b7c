"""The key index: finds the records of a topic by key."""
