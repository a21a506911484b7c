"""Servers: their runtime figures, settings, changes and access control."""
