"""Message traces: records of what a client did, sent in batches, and the clock offsets of brokers."""
