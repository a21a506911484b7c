"""Accounts of the console: passwords, roles, sessions, log-ins and their limits."""
