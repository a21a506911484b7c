"""From a message to a stored record: codec, attempts within one deadline, bounds of the sends in flight."""
