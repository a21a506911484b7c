"""Requests of one connection: those that it serves for its peer, and those whose responses it awaits."""
