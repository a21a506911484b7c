"""Messages: found, read, sent, resent and tracked; delayed ones and transactions."""
