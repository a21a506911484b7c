"""Who uses the console: log-in, accounts and the audit log."""
