"""How fetched messages reach the application, and retries of failed ones."""
