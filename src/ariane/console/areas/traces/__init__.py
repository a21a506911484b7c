"""Traces: search, and the timeline of one message."""
