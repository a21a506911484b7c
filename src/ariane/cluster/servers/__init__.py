"""Brokers and name servers: state, statistics, settings and access control."""
