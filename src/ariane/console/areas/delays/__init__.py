"""Messages that wait: delayed ones and open transactions."""
