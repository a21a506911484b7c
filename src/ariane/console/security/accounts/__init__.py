"""Accounts of the console: passwords, roles, sessions, and log-ins."""
