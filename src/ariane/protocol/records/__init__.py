"""Stored records and what they contain, as the store, pulls and replication carry them."""
