"""The start of a store: from the files that the last process left to a consistent state."""
