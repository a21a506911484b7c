"""Listening ports: new connections until they are plain or encrypted, and the certificates of servers."""
