"""Store directories that are not opened as a store: checked in every invariant, or read."""
