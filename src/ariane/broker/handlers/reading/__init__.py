"""Requests that read messages and offsets."""
