"""Commands that run a server until it is stopped, and the check of a broker's store."""
