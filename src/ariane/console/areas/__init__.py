"""Reads and changes of the console, one module per area. They know view models and forms, not HTTP."""
