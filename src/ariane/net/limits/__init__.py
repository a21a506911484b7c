"""Limits of servers: connections, requests in flight, unfinished frames, and responses that peers do not read."""
