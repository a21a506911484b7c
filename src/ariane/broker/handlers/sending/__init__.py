"""Requests that store messages or decide about stored ones."""
