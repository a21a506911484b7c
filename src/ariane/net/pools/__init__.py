"""Connections of clients: pools, name servers, and servers that do not respond."""
