"""Transactions: half messages, commits and rollbacks, and checks of open ones."""
