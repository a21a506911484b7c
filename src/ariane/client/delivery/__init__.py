"""How fetched messages reach the application, and what becomes of those that fail."""
