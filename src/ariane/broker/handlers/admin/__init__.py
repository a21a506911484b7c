"""Requests of clients about themselves, and of tools about the broker."""
