"""Automatic failover: the supervisor that opens a broker in the role that the record of its set gives it."""
