"""Messages: search, one message, its body, and test messages."""
